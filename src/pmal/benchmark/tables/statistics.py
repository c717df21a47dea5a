"""Figures over splits that do not fool: mean, deviation, paired differences with an interval, and n.

The splits are what varies between the figures of a method; seeds of one split are averaged first. With one
split alone, the deviation is that over its seeds.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 3
"""Fewer splits have no interval."""
_ENUMERATED = 6
"""Up to so many splits, every resample is looked at (6^6); beyond, so many random ones:"""
_DRAWS = 20_000

Observation = tuple[int, float]
"""Split and value."""


@dataclass(frozen=True)
class Mean:
    """Mean over splits. Without a second split or seed there is no deviation."""

    value: float
    deviation: float | None
    cells: int
    splits: int


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences over splits, with its 95 % bootstrap interval from `LEAST` splits on."""

    value: float
    low: float | None
    high: float | None
    splits: int


def mean_over_splits(observations: Iterable[Observation]) -> Mean | None:
    """None of nothing.

    >>> mean_over_splits([(0, 1.0), (0, 3.0), (1, 4.0)])
    Mean(value=3.0, deviation=1.4142135623730951, cells=3, splits=2)
    """
    found = list(observations)
    if not found:
        return None
    means = list(_by_split(found).values())
    spread = means if len(means) > 1 else [value for _, value in found]
    deviation = statistics.stdev(spread) if len(spread) > 1 else None
    return Mean(statistics.fmean(means), deviation, len(found), len(means))


def paired_difference(pairs: Iterable[Observation]) -> Difference | None:
    """Of differences that were each taken within one split and seed."""
    means = list(_by_split(list(pairs)).values())
    if not means:
        return None
    low, high = bootstrap_interval(means) if len(means) >= LEAST else (None, None)
    return Difference(statistics.fmean(means), low, high, len(means))


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean: what it could have been with other splits of the same kind.

    With few splits every resample is counted, so that chance has no part in it. It is then narrower than the
    truth, which cannot be helped without assumptions; n stands beside it.

    >>> bootstrap_interval([1.0, 2.0, 3.0])
    (1.0, 3.0)
    """
    n = len(values)
    if n <= _ENUMERATED:
        indices = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        indices = np.random.default_rng(0).integers(n, size=(_DRAWS, n))
    means = np.asarray(values, dtype=np.float64)[indices].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def _by_split(observations: Sequence[Observation]) -> dict[int, float]:
    values = defaultdict(list)
    for split, value in observations:
        values[split].append(value)
    return {split: statistics.fmean(found) for split, found in sorted(values.items())}
