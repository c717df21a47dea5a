"""Means, deviations and intervals against numpy, scipy and plain transcriptions."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pmal.benchmark.tables.statistics import (
    Difference,
    Mean,
    bootstrap_interval,
    mean_over_splits,
    paired_difference,
)

VALUES = [88.1, 90.4, 86.0, 91.3, 89.7]


def test_mean_and_deviation_over_splits():
    found = mean_over_splits(enumerate(VALUES))
    assert found.value == pytest.approx(np.mean(VALUES))
    assert found.deviation == pytest.approx(np.std(VALUES, ddof=1))
    assert (found.cells, found.splits) == (5, 5)


def test_seeds_of_a_split_are_one_observation():
    # Three seeds of the first split must not outweigh the one of the second.
    found = mean_over_splits([(0, 80.0), (0, 82.0), (0, 84.0), (3, 90.0)])
    assert found == Mean(86.0, pytest.approx(np.std([82.0, 90.0], ddof=1)), 4, 2)


def test_one_split_deviates_over_its_seeds_and_one_cell_not_at_all():
    assert mean_over_splits([(0, 1.0), (0, 3.0)]) == Mean(2.0, pytest.approx(2**0.5), 2, 1)
    assert mean_over_splits([(4, 7.0)]) == Mean(7.0, None, 1, 1)
    assert mean_over_splits([]) is None


@pytest.mark.parametrize("n", [3, 4, 5])
def test_the_interval_counts_every_resample(n):
    values = VALUES[:n]
    # The definition: sort the means of all n^n resamples; the smallest with at least 2.5 % at or below it.
    means = sorted(sum(values[i] for i in chosen) / n for chosen in itertools.product(range(n), repeat=n))
    low = next(m for k, m in enumerate(means, 1) if k / len(means) >= 0.025)
    high = next(m for k, m in enumerate(means, 1) if k / len(means) >= 0.975)
    assert bootstrap_interval(values) == pytest.approx((low, high))


@pytest.mark.parametrize("n", [5, 12])
def test_the_interval_is_that_of_scipy(n):
    values = np.random.default_rng(n).normal(size=n)
    options = {"n_resamples": 20_000, "method": "percentile", "rng": np.random.default_rng(1)}
    expected = stats.bootstrap((values,), np.mean, confidence_level=0.95, **options).confidence_interval
    assert bootstrap_interval(list(values)) == pytest.approx((expected.low, expected.high), abs=0.03)


def test_up_to_six_splits_chance_has_no_part(monkeypatch):
    monkeypatch.setattr("pmal.benchmark.tables.statistics._DRAWS", 1)
    for more, by_chance in (([87.2], False), ([87.2, 90.0], True)):
        low, high = bootstrap_interval([*VALUES, *more])
        assert (low == high) == by_chance


def test_the_interval_is_the_same_every_time():
    values = list(np.random.default_rng(0).normal(size=9))
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_no_interval_of_fewer_than_three_splits():
    assert paired_difference([(0, 1.0), (1, 3.0)]) == Difference(2.0, None, None, 2)
    assert paired_difference([(0, 1.0), (0, 3.0), (0, 2.0)]) == Difference(2.0, None, None, 1)
    assert paired_difference([(0, 1.0), (1, 2.0), (2, 6.0)]) == Difference(3.0, 1.0, 6.0, 3)
    assert paired_difference([]) is None
