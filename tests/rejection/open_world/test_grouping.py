"""Groups among embeddings: found without their number, ranked, and leftovers left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.rejection.open_world import grouping
from pmal.rejection.open_world.grouping import find_groups, group_embeddings, smallest_group, unit_rows


def heaps(sizes, spread=0.05, seed=0, channels=8):
    random = np.random.default_rng(seed)
    parts = [np.eye(channels)[g] + spread * random.normal(size=(n, channels)) for g, n in enumerate(sizes)]
    return np.concatenate(parts).astype(np.float32)


def test_groups_are_the_heaps_and_large_ones_come_first():
    alone = [[0, 0, 0, 3, 3, 3, 0, 0], [0, 0, 0, 0, 0, 0, -1, -1]]
    z_ND = np.concatenate([heaps((10, 30, 15)), alone])
    groups = find_groups(z_ND)
    assert [sorted(group.members.tolist()) for group in groups] == [
        list(range(10, 40)),
        list(range(40, 55)),
        list(range(10)),
    ]
    assert all(0.9 < group.tightness <= 1 for group in groups)


def test_the_length_of_an_embedding_does_not_count():
    z_ND = heaps((12, 12))
    longer = z_ND * np.geomspace(1e-3, 1e3, 24)[:, None]
    assert group_embeddings(longer).tolist() == group_embeddings(z_ND).tolist()


def test_the_most_central_comes_first_and_tight_beats_loose():
    z_ND = np.concatenate([heaps((12,)), heaps((1, 12), spread=0.2, seed=1)[1:]])
    first, second = find_groups(z_ND)
    assert first.tightness > second.tightness
    center = unit_rows(z_ND[first.members]).mean(axis=0)
    cosines = unit_rows(z_ND[first.members]) @ center
    assert (np.diff(cosines) <= 1e-12).all()


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_samples_are_left(count):
    assert find_groups(np.ones((count, 3))) == []


def test_equal_samples_are_one_place():
    assert len(find_groups(np.ones((20, 3)))) <= 1


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 30), st.integers(2, 9), st.integers(0, 99))
def test_every_sample_is_in_one_group_at_most(count, smallest, seed):
    z_ND = np.random.default_rng(seed).normal(size=(count, 5))
    members = [i for group in find_groups(z_ND, smallest) for i in group.members.tolist()]
    assert len(members) == len(set(members))
    assert all(len(group.members) >= smallest for group in find_groups(z_ND, smallest))


def test_the_smallest_group_grows_with_the_pile():
    sizes = [smallest_group(count) for count in range(0, 20_000, 50)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (5, 50)


def test_bad_input_is_refused(monkeypatch):
    with pytest.raises(DataError, match="sample 1: its embedding has NaN"):
        find_groups(np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(DataError, match="shape"):
        find_groups(np.ones(4))
    with pytest.raises(UsageError, match="2 samples or more"):
        find_groups(np.ones((9, 2)), smallest=1)
    monkeypatch.setattr(grouping, "MOST", 3)
    with pytest.raises(UsageError, match="4 samples to group: pass at most 3"):
        find_groups(np.ones((4, 2)))
