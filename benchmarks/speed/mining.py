"""Pairs per second of the topology distance beside blocks of torch.cdist, on the same samples, in turns."""

import statistics
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.limits import Limits
from pmal._runtime.session import Session
from pmal.geometry.kernels import square_sums
from pmal.speed.mining import Problem, mining_row, topology_works
from pmal.speed.timing import Rows, Stopwatch, Work, in_turns

BLOCKS = (128, 512, 2048)
"""Rows at a time for torch.cdist; the best counts."""


def compare_mining(n: int, k: int, repeats: int, limits: Limits, watch: Stopwatch, session: Session) -> Rows:
    """Return a row for each precision."""
    problem = Problem.draw(n, k, session.device)
    (a_NK, b_NK), ours = unit_logits(problem), topology_works(problem, session.device)
    blocks: dict[str, Work] = {
        f"cdist {block}": partial(cdist_distance, a_NK, b_NK, block) for block in BLOCKS
    }
    works = ours | blocks
    with session.display.stage(f"mining, {k} classes", (1 + repeats) * len(works), "turns") as advance:
        seconds = in_turns(works, watch, warmup=1, repeats=repeats, advance=advance)
    reference = n * n / min(statistics.median(seconds[name]) for name in blocks) / 1e9
    rows = [mining_row(n, k, precision, seconds[precision]) for precision in ours]
    return {"mining": [row | _beside(row, reference, limits) for row in rows]}


def _beside(row: dict[str, Any], reference: float, limits: Limits) -> dict[str, Any]:
    # Two multiply-adds per class and pair, as a method without use of symmetry does them.
    flops = 4e9 * row["k"] * row["gpairs_per_s"]
    return {
        "reference_gpairs_per_s": reference,
        "ratio": row["gpairs_per_s"] / reference,
        "tflops": flops / 1e12,
        "share_of_peak": flops / limits.flops["float32"],
    }


def unit_logits(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the centered logits (N, K) of both spaces, of unit RMS length, in float32."""
    first, second = (_unit_logits(*space) for space in (problem.first, problem.second))
    return first, second


def cdist_distance(a_NK: Tensor, b_NK: Tensor, block: int) -> Tensor:
    """Return x of `topology="unit"` by the means of torch alone, a block of rows at a time."""
    product_N = a_NK.new_empty(len(a_NK))
    for start in range(0, len(a_NK), block):
        rows = slice(start, start + block)
        product_N[rows] = (torch.cdist(a_NK[rows], a_NK) * torch.cdist(b_NK[rows], b_NK)).sum(1)
    return distance_from_products(product_N, a_NK, b_NK)


def distance_from_products(product_N: Tensor, a_NK: Tensor, b_NK: Tensor) -> Tensor:
    """Return x from the sums of d_a d_b over all pairs of a sample."""
    cosine_N = product_N.double() * (square_sums(a_NK.double()) * square_sums(b_NK.double())).rsqrt()
    return (2 - 2 * cosine_N).clamp(min=0).sqrt()


def _unit_logits(z_ND: Tensor, W_KD: Tensor) -> Tensor:
    y_NK = z_ND.double() @ (W_KD.double() - W_KD.double().mean(0)).T
    y_NK -= y_NK.mean(0)
    return (y_NK / y_NK.square().sum(1).mean().sqrt()).float()
