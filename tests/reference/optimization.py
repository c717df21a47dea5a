"""The equations of the embedding optimization as loops over samples, classes and channels, in float64.

What they leave open is as documented: a vector of length zero has cosine 0 with everything, and a class
without prototypes is at distance 2.
"""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: Vector, b: Vector) -> float:
    if math.hypot(*a) == 0 or math.hypot(*b) == 0:
        return 0.0
    return dot(a, b) / (math.hypot(*a) * math.hypot(*b))


def attention(z_i: Vector, P_k: Sequence[Vector]) -> list[float]:
    """SoftMax(z_i^T z(P_k) / sqrt(d)), with the largest exponent taken out."""
    exponents = [dot(z_i, p) / math.sqrt(len(z_i)) for p in P_k]
    shares = [math.exp(e - max(exponents)) for e in exponents]
    return [share / sum(shares) for share in shares]


def point_to_set(z_i: Vector, P_k: Sequence[Vector]) -> float:
    """d(z_i, z(P_k)) = 1 - cos(z_i, z_att), z_att the sum of the prototypes by their attention."""
    if not P_k:
        return 2.0
    weights = attention(z_i, P_k)
    z_att = [math.fsum(w * p[c] for w, p in zip(weights, P_k, strict=True)) for c in range(len(z_i))]
    return 1.0 - cosine(z_i, z_att)


def nearest(z_i: Vector, P_k: Sequence[Vector]) -> float:
    return min((1.0 - cosine(z_i, p) for p in P_k), default=2.0)


def margin_loss(distances: Sequence[Vector], labels: Sequence[int], delta: float) -> float:
    """L_p: P_u is the closest prototype set among those of the other classes."""
    total = 0.0
    for d, m in zip(distances, labels, strict=True):
        u = None
        for k in range(len(d)):
            if k != m and (u is None or d[k] < d[u]):
                u = k
        total += max(0.0, d[m] - d[u] + delta)
    return total / len(labels)


def smooth_margin_loss(
    distances: Sequence[Vector], labels: Sequence[int], delta: float, temperature: float
) -> float:
    """t log(1 + sum over k != m of exp((d_m - d_k + delta) / t)), with the largest exponent taken out."""
    total = 0.0
    for d, m in zip(distances, labels, strict=True):
        exponents = [0.0] + [(d[m] - d[k] + delta) / temperature for k in range(len(d)) if k != m]
        largest = max(exponents)
        total += temperature * (largest + math.log(math.fsum(math.exp(e - largest) for e in exponents)))
    return total / len(labels)
