"""Statistics over splits: mean, deviation, paired differences with an interval, and n.

The figures of a method vary between splits; seeds of one split are averaged first. With a single split,
the deviation is that over its seeds.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 3
"""Number of splits from which on there is an interval."""
_ENUMERATED = 6
"""Up to this many splits, every resample is counted (6^6). Above, `_DRAWS` random ones are."""
_DRAWS = 20_000

Observation = tuple[int, float]
"""Split and value."""


@dataclass(frozen=True)
class Mean:
    """Mean over splits. With one split and one seed there is no deviation."""

    value: float
    deviation: float | None
    cells: int
    splits: int


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences over splits. From `LEAST` splits on, with a 95 % bootstrap interval."""

    value: float
    low: float | None
    high: float | None
    splits: int


def mean_over_splits(observations: Iterable[Observation]) -> Mean | None:
    """Return the mean over splits. None: there are no observations.

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
    """Return the mean of differences that were each taken within one split and seed.

    None: there are no differences.
    """
    means = list(_by_split(list(pairs)).values())
    if not means:
        return None
    low, high = bootstrap_interval(means) if len(means) >= LEAST else (None, None)
    return Difference(statistics.fmean(means), low, high, len(means))


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over splits of the same kind.

    With few splits every resample is counted, so the interval does not depend on chance. It is then narrower
    than the true one, which cannot be corrected without assumptions. So tables show n next to it.

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
