"""The densities of CGDL and OpenHybrid as loops over numbers, in float64."""

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]


def log_normal(x: float, mean: float, var: float) -> float:
    return -0.5 * (math.log(2 * math.pi * var) + (x - mean) ** 2 / var)


def kl_by_integration(mean_q: float, var_q: float, mean_p: float, var_p: float, steps: int = 20_000) -> float:
    """KL(q || p) of two normal distributions of one number, as the integral of q log(q / p)."""
    reach = 12 * math.sqrt(var_q)
    width = 2 * reach / steps
    points = (mean_q - reach + (i + 0.5) * width for i in range(steps))
    terms = (
        math.exp(log_normal(x, mean_q, var_q))
        * (log_normal(x, mean_q, var_q) - log_normal(x, mean_p, var_p))
        * width
        for x in points
    )
    return math.fsum(terms)


def nearest_class(t: Vector, means: Sequence[Vector], covariances: Sequence[Sequence[Vector]]) -> float:
    """min_k (t - m_k)^T S_k^-1 (t - m_k) / L, the inverse by Cramer's rule."""
    found = []
    for mean, matrix in zip(means, covariances, strict=True):
        off, size = [a - b for a, b in zip(t, mean, strict=True)], len(mean)
        solved = []
        for i in range(size):
            replaced = [[off[r] if c == i else matrix[r][c] for c in range(size)] for r in range(size)]
            solved.append(determinant(replaced) / determinant(matrix))
        found.append(math.fsum(a * b for a, b in zip(off, solved, strict=True)) / size)
    return min(found)


def shrunk_covariance(rows: Sequence[Vector]) -> list[list[float]]:
    """Of N rows of L numbers; off the diagonal times N / (N + L)."""
    count, size = len(rows), len(rows[0])
    mean = [math.fsum(row[i] for row in rows) / count for i in range(size)]
    return [
        [
            math.fsum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows)
            / (count if i == j else count + size)
            for j in range(size)
        ]
        for i in range(size)
    ]


def log_logistic(x: float) -> float:
    """Log density of the standard logistic distribution, e^-x / (1 + e^-x)^2."""
    return -x - 2 * math.log1p(math.exp(-x))


def log_density(x: Vector, transform: Callable[[Vector], Vector], jacobian: Sequence[Vector]) -> float:
    """log p(x) = sum_d log p0(f(x)_d) + log |det df/dx|."""
    return math.fsum(log_logistic(y) for y in transform(x)) + math.log(abs(determinant(jacobian)))


def standardized(z: Vector, mean: Vector, variance: Vector, unit: bool) -> list[float]:
    """What OpenHybrid's flow sees: the embedding, or its direction, minus mean, over deviation."""
    length = math.sqrt((math.fsum(a * a for a in z) + 1e-6) / len(z)) if unit else 1.0
    return [(a / length - m) / math.sqrt(v) for a, m, v in zip(z, mean, variance, strict=True)]


def determinant(matrix: Sequence[Vector]) -> float:
    """By expansion along the first row."""
    if len(matrix) == 1:
        return matrix[0][0]
    minors = ([row[:j] + row[j + 1 :] for row in map(list, matrix[1:])] for j in range(len(matrix)))
    return math.fsum(
        (-1) ** j * value * determinant(minor)
        for j, (value, minor) in enumerate(zip(matrix[0], minors, strict=True))
    )
