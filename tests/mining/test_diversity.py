import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.mining import diversity as module
from pmal.mining.diversity import DIVERSITY_RULES, diversity_gaps, filter_diverse, gaps_best_first
from tests.reference import mining as reference

# A small grid: equal points, equal distances and equal r abound, and all of it is exact in float64.
GRID = st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 3))
CLASSES = st.lists(GRID, min_size=1, max_size=30)


def _split(samples):
    return [[float(x), float(y)] for x, y, _ in samples], [-float(q) for _, _, q in samples]


def _random_class(seed, count, channels):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, channels)), -rng.random(count)


# -- Algorithm 1


@settings(deadline=None)
@given(CLASSES, st.integers(1, 12))
def test_is_the_transcription_with_ties_and_duplicates(samples, count):
    points, log_r = _split(samples)
    assert diversity_gaps(points, log_r).tolist() == reference.gaps(points, log_r)
    assert filter_diverse(points, log_r, count).tolist() == reference.filter_diverse(points, log_r, count)


@pytest.mark.parametrize(("count", "channels"), [(1, 3), (2, 1), (50, 1), (80, 7), (60, 40)])
def test_is_the_transcription_on_real_numbers(count, channels):
    points, log_r = _random_class(count, count, channels)
    expected = reference.gaps(points.tolist(), log_r.tolist())
    np.testing.assert_allclose(diversity_gaps(points, log_r), expected, rtol=1e-14)
    chosen = filter_diverse(points, log_r, 10).tolist()
    assert chosen == reference.filter_diverse(points.tolist(), log_r.tolist(), 10)


@settings(deadline=None)
@given(CLASSES, st.integers(1, 40))
def test_best_first_exactly_as_many_as_asked_none_twice(samples, count):
    points, log_r = _split(samples)
    chosen = filter_diverse(points, log_r, count).tolist()
    assert chosen[0] == log_r.index(max(log_r))
    assert len(chosen) == len(set(chosen)) == min(count, len(samples))


@settings(deadline=None)
@given(CLASSES, st.integers(1, 12))
def test_fewer_prototypes_are_the_first_of_more(samples, count):
    points, log_r = _split(samples)
    more = filter_diverse(points, log_r, count + 5).tolist()
    assert filter_diverse(points, log_r, count).tolist() == more[:count]


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(random):
    points, log_r = _random_class(3, 40, 3)
    shuffled = random.sample(range(40), 40)
    chosen = filter_diverse(points[shuffled], log_r[shuffled], 8).tolist()
    assert [shuffled[i] for i in chosen] == filter_diverse(points, log_r, 8).tolist()


def test_equal_points_fall_in_the_order_of_r():
    assert filter_diverse(np.ones((5, 2)), [-3.0, -1.0, -1.0, 0.0, -2.0], 4).tolist() == [3, 1, 2, 4]
    assert diversity_gaps(np.ones((5, 2)), np.zeros(5)).tolist() == [0.0] * 5


@pytest.mark.parametrize("block", [1, 7, 10**9])
def test_gaps_do_not_depend_on_the_block(monkeypatch, block):
    points, log_r = _random_class(5, 200, 5)
    whole = diversity_gaps(points, log_r)
    monkeypatch.setattr(module, "_BLOCK", block)
    assert torch.equal(diversity_gaps(points, log_r), whole)


@pytest.mark.parametrize("factor", [2.0**600, 2.0**-600])
def test_neither_huge_nor_tiny_points_lose_a_digit(factor):
    points, log_r = _random_class(7, 30, 4)
    gaps = diversity_gaps(points * factor, log_r)
    assert torch.equal(gaps, diversity_gaps(points, log_r) * factor)


def test_points_that_differ_in_the_last_digit_far_from_zero_keep_their_gap():
    points = np.array([[1e6, 1e6], [1e6 + 2**-30, 1e6], [1e6, 1e6 - 2**-29]])
    assert diversity_gaps(points, [0.0, -1.0, -2.0]).tolist()[1:] == [2**-30, 2**-29]


@pytest.fixture
def blocks(monkeypatch):
    """How many distances each block has."""
    sizes, distances = [], module._distances

    def spy(a, b):
        sizes.append(len(a) * len(b))
        return distances(a, b)

    monkeypatch.setattr(module, "_distances", spy)
    return sizes


@pytest.mark.slow
def test_a_class_of_20000_takes_each_pair_once_in_few_blocks(blocks):
    points, log_r = _random_class(11, 20_000, 10)
    gaps = diversity_gaps(points, log_r)
    assert sum(blocks) < 1.1 * 20_000**2 / 2
    assert len(blocks) < 300
    order = np.argsort(-log_r)
    for place in (1, 777, 19_999):
        i, above = order[place], order[:place]
        expected = np.sqrt(((points[above] - points[i]) ** 2).sum(axis=1)).min()
        assert gaps[i].item() == pytest.approx(expected, rel=1e-14)


def test_memory_is_a_block_and_not_a_matrix(monkeypatch, blocks):
    monkeypatch.setattr(module, "_BLOCK", 2**16)
    gaps_best_first(torch.zeros(5000, 1, dtype=torch.float64))
    assert 5000**2 / 2 <= sum(blocks) < 1.1 * 5000**2 / 2
    assert max(blocks) <= 2**16


# -- the other rules

BLOBS = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]], dtype=torch.float64)


def _blobs(each=25):
    noise = torch.randn(4 * each, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blob = torch.arange(4 * each) % 4
    return BLOBS[blob] + 0.3 * noise, blob


def _take(name, points, count, seed=0):
    return DIVERSITY_RULES[name](points, gaps_best_first(points), count, seed)


@pytest.mark.parametrize("rule", ["gap", "kmeans", "kcenter"])
def test_well_separated_groups_give_one_each(rule):
    points, blob = _blobs()
    assert sorted(blob[_take(rule, points, 4)].tolist()) == [0, 1, 2, 3]


def test_kmeans_takes_the_middle_of_a_group():
    points, blob = _blobs()
    for i in _take("kmeans", points, 4).tolist():
        group = points[blob == blob[i]]
        from_mean = (group - group.mean(dim=0)).norm(dim=1)
        assert (points[i] - group.mean(dim=0)).norm() == from_mean.min()


def test_kmeans_follows_the_seed():
    points = torch.randn(80, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = {tuple(_take("kmeans", points, 12, seed).tolist()) for seed in range(5)}
    assert len(draws) > 1


def test_kmeans_gives_a_sample_to_one_center_only(monkeypatch):
    points = torch.tensor([[9.0], [0.0], [3.0], [4.0]], dtype=torch.float64)
    monkeypatch.setattr(module, "_kmeans_centers", lambda *_: torch.tensor([[0.01], [-0.01]]).double())
    assert _take("kmeans", points, 2).tolist() == [1, 2]


def test_kmeans_fills_up_with_the_best_where_points_coincide():
    points = torch.tensor([[0.0], [1.0], [1.0], [1.0], [5.0]], dtype=torch.float64)
    assert _take("kmeans", points, 4).tolist() == [0, 1, 2, 4]
    assert _take("kmeans", torch.ones(5, 2).double(), 3).tolist() == [0, 1, 2]


def test_kcenter_goes_to_the_farthest_point_each_time():
    points = torch.tensor([[0.0], [1.0], [10.0], [6.0], [-3.0]], dtype=torch.float64)
    assert _take("kcenter", points, 5).tolist() == [0, 2, 3, 4, 1]
    assert _take("kcenter", torch.zeros(4, 1).double(), 3).tolist() == [0, 1, 2]


def test_none_takes_the_best_however_similar():
    points = torch.tensor([[0.0], [0.0], [0.0], [9.0]], dtype=torch.float64)
    assert _take("none", points, 3).tolist() == [0, 1, 2]


def test_random_follows_the_seed_and_grows_with_the_count():
    points, _ = _blobs()
    draws = [tuple(_take("random", points, 10, seed).tolist()) for seed in range(20)]
    assert tuple(_take("random", points, 10, 3).tolist()) == draws[3]
    assert len(set(draws)) == 20
    assert tuple(_take("random", points, 4, 3).tolist()) == draws[3][:4]
    assert len({i for draw in draws for i in draw}) > 60


@pytest.mark.slow
@pytest.mark.parametrize("rule", DIVERSITY_RULES)
@settings(deadline=None)
@given(samples=CLASSES, count=st.integers(1, 12), seed=st.integers(0, 2**62))
def test_every_rule_gives_as_many_as_asked_and_none_twice(rule, samples, count, seed):
    points = torch.tensor(_split(samples)[0], dtype=torch.float64)
    chosen = _take(rule, points, count, seed).tolist()
    assert len(chosen) == len(set(chosen)) == min(count, len(samples))
    assert set(chosen) <= set(range(len(samples)))
    assert chosen == _take(rule, points, count, seed).tolist()


@pytest.mark.parametrize(
    ("points", "log_r", "count", "error", "message"),
    [
        ([[0.0], [math.nan]], [0.0, 0.0], 1, DataError, "sample 1 has NaN"),
        ([[0.0], [math.inf]], [0.0, 0.0], 1, DataError, "sample 1 has NaN or infinite"),
        ([[0.0], [1.0]], [0.0, math.nan], 1, DataError, "nan for sample 1"),
        ([[0.0]], [0.0, 0.0], 1, DataError, "points: 1 rows for 2 samples"),
        ([0.0], [0.0], 1, DataError, "points: expected a matrix"),
        ([[0.0]], [0.0], 0, UsageError, "count=0"),
    ],
)
def test_bad_input_is_named(points, log_r, count, error, message):
    with pytest.raises(error, match=message):
        filter_diverse(points, log_r, count)
