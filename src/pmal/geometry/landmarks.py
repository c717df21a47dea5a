"""x estimated from the distances to M landmarks instead of all N samples, with its standard error: O(N M).

The landmarks are drawn without replacement, the same for all samples and spaces. x^2 is a mean over j, for
`unit` a function of three means. Its variance follows from each landmark's contribution (the delta method):

    rms      q_j = (alpha d_a - beta d_b)^2      g_j = (q_j - x^2) / M
    unit     q_j = (u_j - v_j)^2                 g_j = q_j - x^2 (u_j^2 + v_j^2) / 2

where u and v are the two vectors over the landmarks, of unit length. The g_j sum to zero, and
Var(x^2) = (1 - M / N) M / (M - 1) sum g_j^2. If few samples make up most of x, a draw that misses them
underestimates both x and its error.
"""

import torch
from torch import Tensor

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.geometry.kernels import Advance
from pmal.geometry.logits import Space
from pmal.geometry.topology import SAME, unit_of, weights
from pmal.geometry.torch_kernel import distance_block, row_blocks


def draw_landmarks(n: int, count: int, seed: int) -> Tensor:
    """Return sorted sample indices, the same on every device."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def landmark_gap(
    a: Space, b: Space, topology: str, landmarks: Tensor, advance: Advance | None, ranks: Ranks = ALONE
) -> tuple[Tensor, Tensor]:
    """Return x of every sample and its standard error, float64 (N,). Several processes share the samples."""
    n, m = len(a.y_NR), len(landmarks)
    landmarks = landmarks.to(a.y_NR.device)
    marks_a, marks_b = a.y_NR[landmarks], b.y_NR[landmarks]
    moments_2N = a.y_NR.new_zeros(2, n)
    for rows in row_blocks(n, m, a.y_NR.device, ranks.part):
        distances = distance_block(a.y_NR[rows], marks_a), distance_block(b.y_NR[rows], marks_b)
        moments_2N[:, rows] = torch.stack(_moments(a, b, topology, *distances))
        if advance:
            advance((rows.stop - rows.start) * m)
    square_N, variance_N = ranks.sum(moments_2N)  # each process has zeros for the others' samples
    # About the squared lengths of both weighted vectors together: distances of unit RMS times their scale.
    larger = max(a.scale, b.scale) or 1.0
    whole = 2.0 if topology == "unit" else (a.scale / larger) ** 2 + (b.scale / larger) ** 2
    x_N = torch.where(square_N <= SAME**2 * whole, 0.0, square_N).sqrt()
    error_N = torch.where(x_N > 0, ((1 - m / n) * variance_N).sqrt() / (2 * x_N), 0.0)
    # The mean over landmarks estimates the mean over samples; `literal` is a sum over samples.
    unit = unit_of(a, b, topology) * (1.0 if topology == "unit" else n**0.5)
    return x_N * unit, error_N * unit


def _moments(a: Space, b: Space, topology: str, d_a_BM: Tensor, d_b_BM: Tensor) -> tuple[Tensor, Tensor]:
    """Return x^2 of each row (the mean over landmarks, for `rms` and `literal`) and its variance."""
    m = d_a_BM.shape[1]
    alpha_B, beta_B = weights(a, b, topology, d_a_BM.square().sum(1), d_b_BM.square().sum(1))
    u_BM, v_BM = d_a_BM * alpha_B[:, None], d_b_BM * beta_B[:, None]
    gap_BM = (u_BM - v_BM).square_()
    if topology == "unit":
        square_B = gap_BM.sum(1)
        influence_BM = gap_BM - square_B[:, None] / 2 * (u_BM.square_() + v_BM.square_())
    else:
        square_B = gap_BM.mean(1)
        influence_BM = (gap_BM - square_B[:, None]) / m
    return square_B, influence_BM.square_().sum(1) * (m / (m - 1))
