"""A few candidates that represent one class: Algorithm 1, and the rules it is compared with.

Inside this file the candidates are sorted: M points, best first, so "better" means "earlier". A rule takes
the points, their gaps of Algorithm 1, how many to choose, and a seed. It returns their positions, none of
them twice. Distances are Euclidean in the space of the points; for centered logits this is d_M.
"""

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.mining._arrays import Values, check_count, check_log_quality, check_points

Rule = Callable[[Tensor, Tensor, int, int], Tensor]

# Distances held at a time, 8 MB: about a processor cache, and enough to keep a GPU busy.
_BLOCK = 2**20


def filter_diverse(points: Values, log_r: Values, count: int) -> Tensor:
    """Return the indices of one class's `count` prototypes by Algorithm 1, best first.

    Candidates are taken by `diversity_gaps`, the largest first; of equal gaps, the better candidate. The
    candidate with the largest r always comes first. With fewer than `count` candidates, all are returned.

    Args:
        points: coordinates of the candidates, (M, R).
        log_r: log of their quality, (M,).
        count: number of prototypes.

    Returns:
        Positions in `points`, (count,); fewer if there are fewer candidates.

    >>> points = [[0.0], [0.1], [5.0], [5.2], [9.0]]
    >>> filter_diverse(points, log_r=[-0.1, -0.2, -0.3, -0.4, -0.5], count=3).tolist()
    [0, 2, 4]
    """
    check_count(count, "count")
    points_MR, order = _sorted_input(points, log_r)
    return order[take_by_gap(points_MR, gaps_best_first(points_MR), count, 0)]


def diversity_gaps(points: Values, log_r: Values) -> Tensor:
    """Return the distance of each candidate to the nearest strictly better one, float64 (M,).

    Better means a larger r, or an equal r and an earlier position. Only the best candidate has no better one:
    it gets the largest distance between any two. This takes O(M^2 R) time, and O(M) memory plus one block.

    >>> diversity_gaps([[0.0], [0.1], [5.0], [9.0]], [-0.1, -0.2, -0.3, -0.4]).tolist()
    [9.0, 0.1, 4.9, 4.0]
    """
    points_MR, order = _sorted_input(points, log_r)
    gaps_M = torch.empty(len(order), dtype=torch.float64)
    gaps_M[order] = gaps_best_first(points_MR)
    return gaps_M


def gaps_best_first(points_MR: Tensor) -> Tensor:
    """Return `diversity_gaps` of sorted points, on the CPU.

    Only earlier points are better, so each pair is visited once. Differences are squared directly: the faster
    way through inner products would leave noise if points (nearly) coincide.
    """
    scaled_MR, scale = _near_one(points_MR)
    nearest_M, largest, start = scaled_MR.new_zeros(len(scaled_MR)), 0.0, 0
    while start < len(scaled_MR):
        stop = min(len(scaled_MR), start + _rows(start))
        distances = _distances(scaled_MR[start:stop], scaled_MR[:stop])
        largest = max(largest, float(distances.max()))
        not_better = torch.ones_like(distances[:, start:], dtype=torch.bool).triu()
        distances[:, start:].masked_fill_(not_better, math.inf)
        nearest_M[start:stop] = distances.amin(dim=1)
        start = stop
    nearest_M[:1] = largest
    return nearest_M.cpu() * scale


def take_by_gap(points_MR: Tensor, gaps_M: Tensor, count: int, seed: int) -> Tensor:
    """Take the candidates with the largest gaps first: Algorithm 1."""
    return gaps_M.argsort(descending=True, stable=True)[:count]


def take_best(points_MR: Tensor, gaps_M: Tensor, count: int, seed: int) -> Tensor:
    """Take the best by quality, however similar they are."""
    return torch.arange(min(count, len(points_MR)))


def take_at_random(points_MR: Tensor, gaps_M: Tensor, count: int, seed: int) -> Tensor:
    """Take a random draw. A larger count extends the same draw."""
    return torch.randperm(len(points_MR), generator=torch.Generator().manual_seed(seed))[:count]


def take_farthest(points_MR: Tensor, gaps_M: Tensor, count: int, seed: int) -> Tensor:
    """Take the best, then repeatedly the point farthest from all taken so far: greedy k-center."""
    scaled_MR, _ = _near_one(points_MR)
    taken = [0]
    nearest_M = _distances(scaled_MR, scaled_MR[:1])[:, 0]
    while len(taken) < min(count, len(scaled_MR)):
        nearest_M[taken[-1]] = -1.0
        taken.append(int(nearest_M.argmax()))
        nearest_M = nearest_M.minimum(_distances(scaled_MR, scaled_MR[taken[-1] :][:1])[:, 0])
    return torch.tensor(taken)


def take_by_clusters(points_MR: Tensor, gaps_M: Tensor, count: int, seed: int) -> Tensor:
    """Take the samples nearest to the centers of k-means, best first.

    A sample that is nearest to two centers is taken for the first; the second center takes its next nearest.
    With fewer distinct points than `count`, each is a center, and the best of the others fill up.
    """
    scaled_MR = _near_one(points_MR)[0].cpu()
    free = torch.ones(len(scaled_MR), dtype=torch.bool)
    for center in _kmeans_centers(scaled_MR, count, seed):
        distances = _distances(scaled_MR, center[None])[:, 0]
        free[distances.where(free, math.inf).argmin()] = False
    missing = min(count, len(free)) - int((~free).sum())
    free[free.nonzero()[:missing, 0]] = False
    return (~free).nonzero()[:, 0]


DIVERSITY_RULES: dict[str, Rule] = {
    "gap": take_by_gap,
    "random": take_at_random,
    "kmeans": take_by_clusters,
    "kcenter": take_farthest,
    "none": take_best,
}


def _sorted_input(points: Values, log_r: Values) -> tuple[Tensor, Tensor]:
    log_M = check_log_quality(log_r)
    points_MR = check_points(points, len(log_M))
    order = log_M.argsort(descending=True, stable=True)
    return points_MR[order.to(points_MR.device)], order


def _near_one(points: Tensor) -> tuple[Tensor, float]:
    # A power of two changes no digit, and keeps the squares of 1e200 or 1e-200 within range.
    _, exponent = math.frexp(float(points.abs().max()) if points.numel() else 0.0)
    scale = math.ldexp(1.0, min(max(exponent, -1000), 1000))
    return points / scale, scale


def _rows(start: int) -> int:
    """Return how many rows n from `start` on make a block of n * (start + n) distances."""
    return max(1, (math.isqrt(start * start + 4 * _BLOCK) - start) // 2)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _kmeans_centers(points_MR: Tensor, count: int, seed: int) -> Tensor:
    different = np.unique(points_MR.numpy(), axis=0)
    if len(different) <= count:
        return torch.from_numpy(different)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    model = KMeans(n_clusters=count, n_init=10, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # Points that differ in their last digits may share a cluster: `take_by_clusters` fills up.
        warnings.simplefilter("ignore", ConvergenceWarning)
        centers: NDArray[np.float64] = model.fit(points_MR.numpy()).cluster_centers_
    return torch.from_numpy(centers)
