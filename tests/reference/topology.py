"""Definition 1 as loops over samples, in float64 and in the paper's words and order.

d_M goes through A A^T as the precision matrix, literally. Where the paper cannot be taken literally, x and
tau are as documented: topology vectors of unit length (one of length zero agrees with everything), or the
root mean square of their difference, and r = exp(-x / tau).
"""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def mahalanobis(z_i: Matrix, z_j: Matrix, precision: Matrix) -> float:
    return math.sqrt(max(0.0, (z_i - z_j) @ precision @ (z_i - z_j)))


def topology_vectors(z: Matrix, W: Matrix) -> list[list[float]]:
    """t(z_i) for every i."""
    z, W = np.asarray(z, dtype=np.float64), np.asarray(W, dtype=np.float64)
    A = (W - sum(W) / len(W)).T
    precision = A @ A.T
    return [[mahalanobis(z_i, z_j, precision) for z_j in z] for z_i in z]


def distance(t_1: Sequence[float], t_2: Sequence[float], topology: str) -> float:
    """x of one sample."""
    if topology == "unit":
        length_1, length_2 = math.hypot(*t_1), math.hypot(*t_2)
        if length_1 == 0 or length_2 == 0:
            return 0.0
        return math.dist([d / length_1 for d in t_1], [d / length_2 for d in t_2])
    if topology == "rms":
        return math.sqrt(fmean((d_1 - d_2) ** 2 for d_1, d_2 in zip(t_1, t_2, strict=True)))
    return math.dist(t_1, t_2)


def distances(space_1: tuple[Matrix, Matrix], space_2: tuple[Matrix, Matrix], topology: str) -> list[float]:
    """x of every sample."""
    vectors = zip(topology_vectors(*space_1), topology_vectors(*space_2), strict=True)
    return [distance(t_1, t_2, topology) for t_1, t_2 in vectors]


def log_robustness(x_of_pairs: Sequence[Sequence[float]], temperature: str | float) -> list[float]:
    """log of the mean of r = exp(-x / tau) over the pairs of spaces; r = 1 where the median x is zero."""
    exponents = []
    for x in x_of_pairs:
        tau = median(x) if temperature == "median" else float(temperature)
        exponents.append([-x_i / tau if tau else 0.0 for x_i in x])
    return [log_mean(e_i) for e_i in zip(*exponents, strict=True)]


def log_mean(exponents: Sequence[float]) -> float:
    """log of the mean of exp, with the largest term taken out: exp(-1000) is zero in float64."""
    top = max(exponents)
    return top + math.log(fmean(math.exp(e - top) for e in exponents))


def topology_robustness(
    spaces: Sequence[tuple[Matrix, Matrix]], topology: str, temperature: str | float
) -> list[float]:
    """log r of every sample."""
    x_of_pairs = [distances(space_1, space_2, topology) for space_1, space_2 in combinations(spaces, 2)]
    return log_robustness(x_of_pairs, temperature)
