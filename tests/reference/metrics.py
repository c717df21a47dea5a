"""The metrics as loops over samples and pairs, as they are defined. Larger score = more unknown."""

from collections.abc import Sequence
from itertools import pairwise


def oscr(correct: Sequence[bool], known: Sequence[float], unknown: Sequence[float]) -> float:
    """Share of (known, unknown) pairs with the known one named correctly and scored lower; half for a tie."""
    pairs = 0.0
    for right, low in zip(correct, known, strict=True):
        for high in unknown:
            if right:
                pairs += 1.0 if low < high else 0.5 if low == high else 0.0
    return pairs / (len(known) * len(unknown))


def auroc(known: Sequence[float], unknown: Sequence[float]) -> float:
    """Share of (known, unknown) pairs with the known one scored lower; half for a tie."""
    pairs = 0.0
    for low in known:
        for high in unknown:
            pairs += 1.0 if low < high else 0.5 if low == high else 0.0
    return pairs / (len(known) * len(unknown))


def oscr_curve_area(correct: Sequence[bool], known: Sequence[float], unknown: Sequence[float]) -> float:
    """Trapezoids under the correct classification rate against the false positive rate."""
    points = [(0.0, 0.0)]
    for threshold in sorted(set(known) | set(unknown)):
        named = sum(right and score <= threshold for right, score in zip(correct, known, strict=True))
        accepted = sum(score <= threshold for score in unknown)
        points.append((accepted / len(unknown), named / len(known)))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))


def fpr_at_tpr(known: Sequence[float], unknown: Sequence[float], tpr: float) -> float:
    """Try every threshold from the smallest; the first that accepts enough known samples decides."""
    for threshold in sorted(known):
        if sum(score <= threshold for score in known) / len(known) >= tpr:
            return sum(score <= threshold for score in unknown) / len(unknown)
    raise AssertionError("the largest known score accepts every known sample")


def average_precision(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Sum over thresholds, from the highest score, of the gain in recall times the precision there."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(positive) | set(negative), reverse=True):
        hits = sum(score >= threshold for score in positive)
        taken = hits + sum(score >= threshold for score in negative)
        area += (hits / len(positive) - recall) * (hits / taken)
        recall = hits / len(positive)
    return area
