"""The result of mining as plain numbers: the distribution of r, and the pictures along its axis."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pmal.data.samples import evenly
from pmal.reporting.page.numbers.run_numbers import Floats, Ints, rounded

STEPS = (0.005, 0.01, 0.02, 0.05, 0.1)
MOST_INTERVALS = 14
PICTURES = 3
"""Number of pictures per interval and class."""


def intervals(r_N: Floats) -> Floats:
    """Return round edges that cover all r in at most 14 intervals.

    >>> intervals(np.array([0.08, 0.47])).tolist()
    [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
    """
    for step in STEPS:
        low = math.floor(float(r_N.min()) / step + 1e-9)
        high = max(math.ceil(float(r_N.max()) / step - 1e-9), low + 1)
        if high - low <= MOST_INTERVALS:
            break
    return np.round(np.arange(low, high + 1) * step, 6)


def robustness_figure(
    r_N: Floats, labels_N: Ints, correct_N: Floats, classes: Sequence[int], names: Sequence[str]
) -> dict[str, Any]:
    """Return counts, accuracy and pictures per interval of r: of all classes, then of each one shown.

    Pictures are positions of training images.

    Args:
        r_N: robustness of the training images.
        labels_N: their classes.
        correct_N: share of the classifiers that name each of them correctly.
        classes: the classes that are shown.
        names: of all classes.
    """
    edges = intervals(r_N)
    interval_N = np.clip(np.searchsorted(edges, r_N, side="right") - 1, 0, len(edges) - 2)
    every = np.arange(len(r_N))
    groups = [("all", every)] + [(names[k], np.flatnonzero(labels_N == k)) for k in classes]
    return {
        "edges": edges.tolist(),
        "groups": [
            {"name": name, **_per_interval(members, r_N, interval_N, correct_N, len(edges) - 1)}
            for name, members in groups
        ],
    }


def least_robust(r_N: Floats, ids_N: Ints, members: Ints, most: int) -> list[int]:
    """Return the positions in a class with the smallest r, the smallest first, ties by id.

    Args:
        r_N: robustness of all training images.
        ids_N: their ids.
        members: positions of the class.
        most: number of positions at most.
    """
    order = np.lexsort((ids_N[members], r_N[members]))
    positions: list[int] = members[order[:most]].tolist()
    return positions


def _per_interval(
    members: Ints, r_N: Floats, interval_N: Ints, correct_N: Floats, count: int
) -> dict[str, Any]:
    inside = [members[interval_N[members] == i] for i in range(count)]
    return {
        "count": [len(part) for part in inside],
        "accuracy": rounded(float(correct_N[part].mean()) if len(part) else math.nan for part in inside),
        "mean": round(float(correct_N[members].mean()), 4) if len(members) else None,
        "median": round(float(np.median(r_N[members])), 4) if len(members) else None,
        "pictures": [_spread(part, r_N) for part in inside],
    }


def _spread(part: Ints, r_N: Floats) -> list[int]:
    """Return the positions of a few images of an interval, from small to large r."""
    by_r = part[np.argsort(r_N[part], kind="stable")]
    # The middle of each third is more typical of the interval than its ends.
    inner = [int((2 * i + 1) * len(by_r) / (2 * PICTURES)) for i in range(PICTURES)]
    chosen: list[int] = by_r[sorted(set(inner))].tolist() if len(by_r) >= PICTURES else by_r.tolist()
    return chosen


def shown_classes(count: int, most: int) -> list[int]:
    """Return the classes that the report shows, evenly spaced if there are more than `most`.

    >>> shown_classes(3, 40), len(shown_classes(1000, 40))
    ([0, 1, 2], 40)
    """
    chosen: list[int] = evenly(count, most).tolist()
    return chosen
