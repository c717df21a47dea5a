"""The pair kernel in plain torch, float64 throughout, for machines without numba or Triton."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pmal.geometry.kernels import WHOLE, Advance, PairSums, Part, square_sums

TILE_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Distances held at a time, per space: what fits a cache, and what keeps a GPU busy."""


NARROW = 32
"""Most coordinates for which differences cost no more than a matrix product."""


def distance_block(points: Tensor, others: Tensor) -> Tensor:
    """Return the Euclidean distances (B, M) of points (B, R) to others (M, R).

    They come from the differences themselves, so that close points keep their digits.

    >>> distance_block(torch.tensor([[1e8, 0.0]]), torch.tensor([[1e8, 1.0], [1e8, 0.0]])).tolist()
    [[1.0, 0.0]]
    """
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")


def pair_sums(
    a_NR: Tensor, b_NR: Tensor, *, fast: bool, advance: Advance | None, part: Part = WHOLE
) -> PairSums:
    """Compute what `Kernel.pair_sums` says. There is no faster mode: `fast` changes nothing."""
    n = len(a_NR)
    gap_N = torch.zeros(n, dtype=torch.float64, device=a_NR.device)
    for rows in row_blocks(n, n, a_NR.device, part):
        # Through a matrix product, which leaves close pairs an error of 1e-8 of the lengths: too little to
        # count in a sum of squares.
        gap_BN = torch.cdist(a_NR[rows], a_NR).sub_(torch.cdist(b_NR[rows], b_NR))
        gap_N[rows] = gap_BN.square_().sum(1)
        if advance:
            advance((rows.stop - rows.start) * n)
    return PairSums(gap_N, square_sums(a_NR), square_sums(b_NR))


def squared_gaps(a_NR: Tensor, b_NR: Tensor, rows: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Compute what `Kernel.squared_gaps` says."""
    gaps = torch.empty(len(rows), dtype=torch.float64, device=a_NR.device)
    for part in row_blocks(len(rows), len(a_NR), a_NR.device):
        here = rows[part]
        gap_BN = _distances(a_NR[here], a_NR).mul_(alpha[part, None])
        gap_BN -= _distances(b_NR[here], b_NR).mul_(beta[part, None])
        gaps[part] = gap_BN.square_().sum(1)
    return gaps


def row_blocks(rows: int, columns: int, device: torch.device, part: Part = WHOLE) -> Iterator[slice]:
    """Yield slices such that a block of rows x columns stays within the tile; or some of these."""
    height = max(1, TILE_NUMBERS[device.type] // columns)
    starts, (index, count) = range(0, rows, height), part
    for start in starts[len(starts) * index // count : len(starts) * (index + 1) // count]:
        yield slice(start, min(start + height, rows))


def _distances(a_BR: Tensor, b_MR: Tensor) -> Tensor:
    """Compute distances from differences while that is cheap; of wide rows by a float64 matrix product.

    The product leaves close pairs an error of 1e-8 of the lengths: too little to count in a sum of squares.
    """
    return distance_block(a_BR, b_MR) if a_BR.shape[1] <= NARROW else torch.cdist(a_BR, b_MR)
