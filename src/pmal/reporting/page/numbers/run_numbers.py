"""Figures of a run as plain numbers that JSON can hold: curves, histograms, confusion, training.

A score says how unknown an image looks: larger = more unknown; NaN counts as +inf.
Shapes: N known images, M unknown ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HISTOGRAM_BINS = 40
CURVE_POINTS = 240


def rounded(values: Iterable[float], digits: int = 4) -> list[float | None]:
    """Return rounded values for JSON, in which NaN and infinities become None.

    >>> rounded([0.123456, float("inf")])
    [0.1235, None]
    """
    return [round(float(v), digits) if math.isfinite(v) else None for v in values]


def score_histogram(known_N: Floats, unknown_M: Floats | None, threshold: float | None) -> dict[str, Any]:
    """Return the shares of known and of unknown images per interval of a score.

    The axis covers the middle 99 % of all images and the threshold. Images beyond it count in the last
    interval on their side.

    Args:
        known_N: scores of known images.
        unknown_M: scores of unknown images. None: there are none.
        threshold: None: there is none.
    """
    pooled = np.concatenate([known_N, unknown_M if unknown_M is not None else known_N[:0]])
    pooled = pooled[np.isfinite(pooled)]
    limit = [threshold] if threshold is not None and math.isfinite(threshold) else []
    low, high = np.quantile(pooled, [0.005, 0.995]) if len(pooled) else (0.0, 1.0)
    low, high = min([low, *limit]), max([high, *limit])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
    return {
        "edges": [float(f"{edge:.6g}") for edge in edges],
        "known": _shares(known_N, edges),
        "unknown": None if unknown_M is None else _shares(unknown_M, edges),
        "threshold": limit[0] if limit else None,
    }


def open_set_curve(correct_N: Bools, known_N: Floats, unknown_M: Floats) -> dict[str, Any]:
    """Return the shares accepted as the threshold rises: of unknown, of known, of correct known images.

    Known over unknown is the ROC. Correct over unknown is the curve whose area is OSCR.

    Args:
        correct_N: whether each known image is named correctly.
        known_N: scores of known images.
        unknown_M: scores of unknown images.
    """
    known_N, unknown_M = _nan_is_unknown(known_N), _nan_is_unknown(unknown_M)
    levels = np.unique(np.concatenate([known_N, unknown_M]))
    columns = [
        np.concatenate([[0.0], np.searchsorted(np.sort(part), levels, side="right") / whole])
        for part, whole in (
            (unknown_M, len(unknown_M)),
            (known_N, len(known_N)),
            (known_N[correct_N], len(known_N)),
        )
    ]
    kept = _along(columns[0], columns[1], CURVE_POINTS)
    return dict(zip(("unknown", "known", "correct"), (rounded(c[kept]) for c in columns), strict=True))


def confusion(truth_N: Ints, answer_N: Ints, classes: Sequence[int], rows: int) -> list[list[int]]:
    """Return the counts of the answers per true class: the shown classes, all others, then unknown.

    Args:
        truth_N: row of each image; it is not counted if it is outside 0 .. rows - 1.
        answer_N: its answer, -1 for unknown.
        classes: the shown classes.
        rows: number of rows.

    >>> confusion(np.array([0, 0, 1, 2]), np.array([0, -1, 1, 5]), classes=[0, 1], rows=3)
    [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
    """
    column_of = {label: column for column, label in enumerate(classes)} | {-1: len(classes) + 1}
    columns_N = np.array([column_of.get(int(a), len(classes)) for a in answer_N], dtype=np.int64)
    counts = np.zeros((rows, len(classes) + 2), dtype=np.int64)
    inside = (truth_N >= 0) & (truth_N < rows)
    np.add.at(counts, (truth_N[inside], columns_N[inside]), 1)
    found: list[list[int]] = counts.tolist()
    return found


def training_curves(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return loss and learning rate per epoch of every training in a log.

    An epoch that was trained again, after an interruption or with other settings, replaces the older one and
    all epochs after it.

    >>> log = [{"stage": "a", "epoch": e, "loss": l, "rate": 0.1} for e, l in [(1, 3.0), (2, 2.0), (1, 1.0)]]
    >>> training_curves(log)
    [{'name': 'a', 'epoch': [1], 'loss': [1.0], 'rate': [0.1]}]
    """
    stages: dict[str, dict[int, tuple[float, float]]] = {}
    for event in events:
        if not {"stage", "epoch", "loss", "rate"} <= set(event):
            continue
        epoch, stage = int(event["epoch"]), stages.setdefault(str(event["stage"]), {})
        for later in [e for e in stage if e >= epoch]:
            del stage[later]
        stage[epoch] = (float(event["loss"]), float(event["rate"]))
    return [
        {
            "name": name,
            "epoch": list(epochs),
            "loss": rounded((loss for loss, _ in epochs.values()), 6),
            "rate": rounded((rate for _, rate in epochs.values()), 8),
        }
        for name, epochs in stages.items()
    ]


def _shares(scores: Floats, edges: Floats) -> list[float | None]:
    inside = np.clip(_nan_is_unknown(scores), edges[0], edges[-1])
    return rounded(np.histogram(inside, edges)[0] / max(1, len(scores)))


def _along(x: Floats, y: Floats, most: int) -> Ints:
    """Return the positions of points at equal steps along a rising curve, with both ends."""
    length = np.concatenate([[0.0], np.cumsum(np.diff(x) + np.diff(y))])
    if len(x) <= most:
        return np.arange(len(x))
    wanted = np.linspace(0.0, length[-1], most)
    return np.unique(
        np.concatenate([[0], np.searchsorted(length, wanted).clip(max=len(x) - 1), [len(x) - 1]])
    )


def _nan_is_unknown(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), np.inf, scores)
