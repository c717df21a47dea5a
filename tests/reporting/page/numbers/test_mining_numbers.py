import itertools

import numpy as np
import pytest

from pmal.reporting.page.numbers.mining_numbers import (
    MOST_INTERVALS,
    intervals,
    least_robust,
    robustness_figure,
)


@pytest.mark.parametrize(
    "r", [[0.0, 1.0], [0.3], [1.0, 1.0], [0.0, 0.0], [0.04, 0.56], [1e-30, 0.999], [0.5, 0.5001]]
)
def test_intervals_are_few_and_cover_all(r):
    edges = intervals(np.array(r))
    assert 2 <= len(edges) <= MOST_INTERVALS + 1
    assert edges[0] <= min(r)
    assert max(r) <= edges[-1]
    assert np.diff(edges).min() > 0


def test_counts_accuracy_and_pictures_of_each_interval():
    random = np.random.default_rng(0)
    r, labels = random.random(500), random.integers(0, 3, 500)
    correct = random.choice([0.0, 0.5, 1.0], 500)
    found = robustness_figure(r, labels, correct, [0, 2], ["a", "b", "c"])
    assert [group["name"] for group in found["groups"]] == ["all", "a", "c"]
    edges = found["edges"]
    for group, members in zip(found["groups"], (labels >= 0, labels == 0, labels == 2), strict=True):
        assert sum(group["count"]) == members.sum()
        assert group["median"] == pytest.approx(np.median(r[members]), abs=1e-4)
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            inside = members & (r >= low) & (r < high)
            assert group["count"][i] == inside.sum()
            assert group["accuracy"][i] == pytest.approx(correct[inside].mean(), abs=1e-4)
            pictures = group["pictures"][i]
            assert len(set(pictures)) == len(pictures) == min(3, inside.sum())
            assert all(inside[p] for p in pictures)
            assert sorted(pictures, key=lambda p: r[p]) == pictures


def test_an_empty_interval_has_no_accuracy():
    found = robustness_figure(np.array([0.1, 0.9]), np.array([0, 0]), np.ones(2), [0], ["a"])
    assert None in found["groups"][0]["accuracy"]
    assert found["groups"][0]["accuracy"].count(1.0) == 2


def test_the_least_robust_come_first_and_ties_go_by_id():
    r, ids = np.array([0.5, 0.1, 0.1, 0.9]), np.array([4, 9, 7, 1])
    assert least_robust(r, ids, np.array([0, 1, 2, 3]), 3) == [2, 1, 0]


@pytest.mark.parametrize(
    ("r", "edges"),
    [
        ([0.0, 0.07], np.arange(15) * 0.005),  # as many as there may be
        ([0.15, 0.6], np.arange(3, 13) * 0.05),  # 0.15 / 0.05 is a little less than 3
        ([0.0, 0.071], np.arange(9) * 0.01),
    ],
)
def test_edges_are_as_narrow_as_there_is_room_and_none_is_empty(r, edges):
    np.testing.assert_allclose(intervals(np.array(r)), edges, atol=1e-9)


def test_what_lies_on_an_edge_belongs_to_the_interval_above_but_for_the_last():
    found = robustness_figure(np.array([0.0, 0.5, 0.5, 1.0]), np.zeros(4, int), np.ones(4), [], [])
    edges, [group] = found["edges"], found["groups"]
    assert (group["count"][edges.index(0.5)], group["count"][0], group["count"][-1]) == (2, 1, 1)


def test_pictures_are_from_the_middle_of_each_third():
    r = np.array([0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 0.9]) / 1000
    [group] = robustness_figure(r, np.zeros(9, int), np.ones(9), [], [])["groups"]
    assert group["pictures"] == [[2, 7, 1]]
