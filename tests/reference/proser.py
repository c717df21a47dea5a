"""PROSER's loss as loops over images and classes, in float64."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def cross_entropy(logits: Vector, label: int) -> float:
    return math.log(math.fsum(math.exp(value) for value in logits)) - logits[label]


def with_placeholder(known: Vector, placeholders: Vector) -> list[float]:
    """f^(x): the known logits and the largest of the placeholders'."""
    return [*known, max(placeholders)]


def loss(
    logits: Sequence[Vector],
    mixed: Sequence[Vector],
    labels: Sequence[int],
    pairs: Sequence[bool],
    beta: float,
    gamma: float,
) -> float:
    """l_1 + gamma l_2 of rows with K + 1 logits; `pairs`: which mixtures are of two classes."""
    first = [cross_entropy(row, y) for row, y in zip(logits, labels, strict=True)]
    second = []
    for row, y in zip(logits, labels, strict=True):
        others = [value for k, value in enumerate(row) if k != y]
        second.append(cross_entropy(others, len(others) - 1))
    third = [cross_entropy(row, len(row) - 1) for row, counts in zip(mixed, pairs, strict=True) if counts]
    between = math.fsum(third) / len(third) if third else 0.0
    return math.fsum(first) / len(first) + beta * math.fsum(second) / len(second) + gamma * between
