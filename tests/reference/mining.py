"""Candidate selection and Algorithm 1 as loops over samples, in the paper's words and order.

Where the paper leaves a choice, it is made as documented: a class keeps its `at_least` best samples, of equal
ones the earlier is the better, and exactly T candidates are taken.
"""

import math
from collections.abc import Sequence

Point = Sequence[float]


def better(log_r: Sequence[float], j: int, i: int) -> bool:
    """r(x_j) > r(x_i), with ties broken by position."""
    return log_r[j] > log_r[i] or (log_r[j] == log_r[i] and j < i)


def select_candidates(
    log_r: Sequence[float], labels: Sequence[int], epsilon: float, at_least: int
) -> list[bool]:
    """Samples with r at or above epsilon * max r of their class; then the next best, up to `at_least`."""
    keep = [False] * len(log_r)
    for k in set(labels):
        S_k = [i for i in range(len(labels)) if labels[i] == k]
        highest = max(math.exp(log_r[i]) for i in S_k)
        for i in S_k:
            if math.exp(log_r[i]) >= epsilon * highest:
                keep[i] = True
        while sum(keep[i] for i in S_k) < min(at_least, len(S_k)):
            best = None
            for i in S_k:
                if not keep[i] and (best is None or better(log_r, i, best)):
                    best = i
            keep[best] = True
    return keep


def mahalanobis(a: Point, b: Point) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def gaps(points: Sequence[Point], log_r: Sequence[float]) -> list[float]:
    """The array E of Algorithm 1."""
    N_k = len(points)
    D_k = [[mahalanobis(points[i], points[j]) for j in range(N_k)] for i in range(N_k)]
    largest = max(max(row) for row in D_k)
    E = [largest] * N_k
    for i in range(N_k):
        distances = [D_k[i][j] for j in range(N_k) if better(log_r, j, i)]
        if distances:
            E[i] = min(distances)
    return E


def filter_diverse(points: Sequence[Point], log_r: Sequence[float], T: int) -> list[int]:
    """Sort E in descending order and take the first T, one after the other."""
    E = gaps(points, log_r)
    E_ind = list(range(len(points)))
    for end in range(len(E_ind) - 1, 0, -1):
        for a in range(end):
            i, j = E_ind[a], E_ind[a + 1]
            if E[j] > E[i] or (E[j] == E[i] and better(log_r, j, i)):
                E_ind[a], E_ind[a + 1] = j, i
    P_k = []
    while len(P_k) < T and E_ind:
        P_k.append(E_ind.pop(0))
    return P_k


def mine(
    log_r: Sequence[float],
    points: Sequence[Point],
    labels: Sequence[int],
    num_classes: int,
    epsilon: float,
    T: int,
) -> list[list[int]]:
    """Positions of the prototypes of each class, first choice first."""
    keep = select_candidates(log_r, labels, epsilon, T)
    P = []
    for k in range(num_classes):
        C_k = [i for i in range(len(labels)) if keep[i] and labels[i] == k]
        if not C_k:
            P.append([])
            continue
        chosen = filter_diverse([points[i] for i in C_k], [log_r[i] for i in C_k], T)
        P.append([C_k[c] for c in chosen])
    return P
