"""The distance x of a sample's two topology vectors in Definition 1, before the exponential.

t holds the distances of sample i to all N samples. With alpha_i and beta_i the weights that a rule gives to
the two vectors (1 / length for `unit`; for the others, the factor that restores the scale),

    x_i^2 = sum_j (alpha_i d_a(i, j) - beta_i d_b(i, j))^2                                          (1)
          = alpha beta sum_j (d_a - d_b)^2 + (alpha - beta) (alpha |t_a|^2 - beta |t_b|^2)          (2)

(2) needs one root per pair, (d_a - d_b)^2 = s_a + s_b - 2 sqrt(s_a s_b) with s = d^2. It is symmetric in i
and j, and |t| has a closed form. Its errors in float32, relative to w = alpha^2 |t_a|^2 + beta^2 |t_b|^2:
 - All sums see the same rounded coordinates: x is exact for samples that moved by 3e-8, and changes no more.
 - An error of s counts only by (1 - d_b / d_a), which is small if the two spaces agree.
 - The root's rounding, 3e-8 of s, is random and averages out: 3e-8 / sqrt(N).
Summing the small gaps gains a digit over summing the products d_a d_b, which are as large as w: the rounding
of the sums shrinks with x^2. An error of e w becomes e w / (2 x^2) in x. For N = 5000, five digits were
measured down to x = 0.015.

Duplicates (the same error many times) or matrix units that truncate can still be worse. So nothing is
assumed: the error is measured on a few samples, and samples with too large an error are recomputed by (1)
in float64, which has no cancellation.
"""

import math

import torch
from torch import Tensor

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.geometry.kernels import Advance, Kernel, square_sums
from pmal.geometry.logits import Space

TOPOLOGIES = ("unit", "rms", "literal")
TOLERANCE = 1e-5
"""Largest relative error of x with precision `exact`."""
SMALL = 2048
"""Up to this many samples, float64 is faster than finding out where it is needed."""
_PROBES = 64
_SAFETY = 3.0
"""Factor on the largest error among the probes."""
SAME = 1e-12
"""Topology vectors closer than this, relative to their lengths, differ only by rounding."""


def topology_gap(
    a: Space,
    b: Space,
    topology: str,
    kernel: Kernel,
    *,
    fast: bool,
    advance: Advance | None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return x of every sample, float64 (N,). Several processes share the pairs and exchange N numbers.

    With `fast`, accuracy may be given up for speed. `advance` is told how many pairs were just computed.
    """
    n = len(a.y_NR)
    if n <= SMALL:
        every = torch.arange(n, device=a.y_NR.device)
        gap_N, whole_N = _double_gaps(a, b, topology, kernel, every)
        if advance:
            advance(n * n // ranks.size)
    else:
        sums = kernel.pair_sums(a.y_NR, b.y_NR, fast=fast, advance=advance, part=ranks.part)
        sums = sums._replace(gap=ranks.sum(sums.gap))
        alpha_N, beta_N = weights(a, b, topology, sums.square_a, sums.square_b)
        whole_N = alpha_N**2 * sums.square_a + beta_N**2 * sums.square_b
        apart_N = (alpha_N - beta_N) * (alpha_N * sums.square_a - beta_N * sums.square_b)
        gap_N = alpha_N * beta_N * sums.gap + apart_N
        if not fast:
            gap_N = _repair(a, b, topology, kernel, gap_N, whole_N, ranks)
    same_N = gap_N <= SAME**2 * whole_N
    return torch.where(same_N, 0.0, gap_N.clamp(min=0)).sqrt() * unit_of(a, b, topology)


def weights(a: Space, b: Space, topology: str, square_a: Tensor, square_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return alpha and beta, given the squared lengths of the topology vectors."""
    if topology == "unit":
        # A space of identical samples has no topology to compare with.
        defined = (square_a > 0) & (square_b > 0)
        return torch.where(defined, square_a.rsqrt(), 0.0), torch.where(defined, square_b.rsqrt(), 0.0)
    larger = max(a.scale, b.scale) or 1.0
    return torch.full_like(square_a, a.scale / larger), torch.full_like(square_b, b.scale / larger)


def unit_of(a: Space, b: Space, topology: str) -> float:
    """Return the unit of x, which is factored out so that no sum overflows."""
    if topology == "unit":
        return 1.0
    return max(a.scale, b.scale) / (math.sqrt(len(a.y_NR)) if topology == "rms" else 1.0)


def _double_gaps(a: Space, b: Space, topology: str, kernel: Kernel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return x^2 of these rows, all in float64, and alpha^2 |t_a|^2 + beta^2 |t_b|^2."""
    square_a, square_b = square_sums(a.y_NR)[rows], square_sums(b.y_NR)[rows]
    alpha, beta = weights(a, b, topology, square_a, square_b)
    gaps = kernel.squared_gaps(a.y_NR, b.y_NR, rows, alpha, beta)
    return gaps, alpha**2 * square_a + beta**2 * square_b


def _repair(
    a: Space, b: Space, topology: str, kernel: Kernel, gap_N: Tensor, whole_N: Tensor, ranks: Ranks
) -> Tensor:
    """Measure the error of x^2 on a few samples, and replace every x^2 with too large an error."""
    whole_N = whole_N.clamp(min=torch.finfo(torch.float64).tiny)
    order = (gap_N / whole_N).argsort()
    spread = torch.linspace(0, len(order) - 1, min(_PROBES, len(order)), dtype=torch.float64)
    probes = order[spread.long()]
    right, _ = _double_gaps(a, b, topology, kernel, probes)
    offset, slope, rest = _error_line((gap_N / whole_N)[probes], right / whole_N[probes])
    repaired_N = gap_N - offset * whole_N - slope * gap_N
    repaired_N[probes] = right
    doubtful_N = repaired_N < _SAFETY * rest / (2 * TOLERANCE) * whole_N
    doubtful_N[probes] = False
    ranks.copy_first([doubtful_N])  # processors that round differently must divide the same work
    rows = doubtful_N.nonzero()[:, 0]
    own = rows[ranks.share(len(rows))]
    found = torch.zeros_like(repaired_N)
    if len(own):
        found[own], _ = _double_gaps(a, b, topology, kernel, own)
    return torch.where(doubtful_N, ranks.sum(found), repaired_N)


def _error_line(found: Tensor, right: Tensor) -> tuple[float, float, float]:
    """Return the error that all samples share, as offset and slope (times found), and the largest residual.

    Matrix units truncate instead of rounding, which shifts every sum the same way. This common error is
    subtracted; the residual decides which samples are recomputed.
    """
    terms = torch.stack([torch.ones_like(found), found], dim=1).cpu()
    error = (found - right).cpu()
    line = torch.linalg.lstsq(terms, error[:, None], driver="gelsd").solution[:, 0]
    rest = float((error - terms @ line).abs().max())
    return float(line[0]), float(line[1]), rest
