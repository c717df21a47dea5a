"""OpenMax's equations as loops over images and classes, in float64."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def centered(logits: Vector) -> list[float]:
    mean = math.fsum(logits) / len(logits)
    return [value - mean for value in logits]


def mean_activation(logits: Sequence[Vector], labels: Sequence[int], k: int) -> list[float]:
    """Over the images of class k whose largest logit is the k-th."""
    own = [centered(row) for row, y in zip(logits, labels, strict=True) if y == k and row[k] == max(row)]
    return [math.fsum(column) / len(own) for column in zip(*own, strict=True)]


def unknown_probability(
    logits: Vector, means: Sequence[Vector], shapes: Vector, scales: Vector, alpha: int
) -> float:
    """Algorithm 2, with the weights (alpha + 1 - i) / alpha, i = 1..alpha, of the authors' code."""
    v = centered(logits)
    omega = [1.0] * len(v)
    for i, k in enumerate(sorted(range(len(v)), key=lambda k: -v[k])[:alpha], start=1):
        distance = math.dist(v, means[k])
        w_score = 1.0 - math.exp(-((distance / scales[k]) ** shapes[k]))
        omega[k] = 1.0 - (alpha + 1 - i) / alpha * w_score
    revised = [v[k] * omega[k] for k in range(len(v))]
    unknown = math.fsum(v[k] * (1.0 - omega[k]) for k in range(len(v)))
    return math.exp(unknown) / (math.exp(unknown) + math.fsum(map(math.exp, revised)))
