"""Pairs per second of the topology distance beside blocks of torch.cdist, on the same samples, in turns.

N samples, K classes.
"""

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.session import Session
from pmal.geometry import topology_distance
from pmal.geometry.kernels import square_sums
from pmal.speed.timing import Limits, Stopwatch, Work, in_turns, spread

BLOCKS = (128, 512, 2048)
"""Rows at a time for torch.cdist; the best counts."""


@dataclass(frozen=True)
class Problem:
    """Two spaces of K classes, clustered, that differ by noise: embeddings and class weights of each."""

    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    labels: Tensor

    @classmethod
    def draw(cls, n: int, k: int, device: str | torch.device) -> "Problem":
        generator, channels = torch.Generator(device).manual_seed(k), max(64, k)
        W_KD = torch.randn(k, channels, generator=generator, device=device)
        labels_N = torch.randint(k, (n,), generator=generator, device=device)
        noise = [torch.randn(n, channels, generator=generator, device=device) for _ in range(2)]
        z_ND = 2 * W_KD[labels_N] + noise[0]
        return cls((z_ND, W_KD), (z_ND + noise[1], W_KD), labels_N.cpu())

    def logits(self) -> tuple[Tensor, Tensor]:
        """Centered logits (N, K) of both, of unit RMS length, in float32."""
        first, second = (_unit_logits(*space) for space in (self.first, self.second))
        return first, second


def cdist_distance(a_NK: Tensor, b_NK: Tensor, block: int) -> Tensor:
    """x of `topology="unit"` by the means of torch alone, a block of rows at a time."""
    product_N = a_NK.new_empty(len(a_NK))
    for start in range(0, len(a_NK), block):
        rows = slice(start, start + block)
        product_N[rows] = (torch.cdist(a_NK[rows], a_NK) * torch.cdist(b_NK[rows], b_NK)).sum(1)
    return distance_from_products(product_N, a_NK, b_NK)


def distance_from_products(product_N: Tensor, a_NK: Tensor, b_NK: Tensor) -> Tensor:
    """x from the sums of d_a d_b over all pairs of a sample."""
    cosine_N = product_N.double() * (square_sums(a_NK.double()) * square_sums(b_NK.double())).rsqrt()
    return (2 - 2 * cosine_N).clamp(min=0).sqrt()


def measure_mining(
    n: int, k: int, repeats: int, limits: Limits, watch: Stopwatch, session: Session
) -> list[dict[str, Any]]:
    """A row for each precision."""
    device, problem = session.device, Problem.draw(n, k, session.device)
    a_NK, b_NK = problem.logits()
    precisions = ("exact", "fast") if device.type == "cuda" else ("exact",)
    works: dict[str, Work] = {
        precision: partial(
            topology_distance, problem.first, problem.second, precision=precision, device=device
        )
        for precision in precisions
    }
    works |= {f"cdist {block}": partial(cdist_distance, a_NK, b_NK, block) for block in BLOCKS}
    with session.display.stage(f"mining, {k} classes", (1 + repeats) * len(works), "turns") as advance:
        seconds = in_turns(works, watch, warmup=1, repeats=repeats, advance=advance)
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    reference = min(median[f"cdist {block}"] for block in BLOCKS)
    return [
        {
            "n": n,
            "k": k,
            "precision": precision,
            "gpairs_per_s": n * n / median[precision] / 1e9,
            "spread": spread(seconds[precision]),
            "reference_gpairs_per_s": n * n / reference / 1e9,
            "ratio": reference / median[precision],
            # Two multiply-adds per class and pair, as a method without use of symmetry does them.
            "tflops": 4 * k * n * n / median[precision] / 1e12,
            "share_of_peak": 4 * k * n * n / median[precision] / limits.flops["float32"],
        }
        for precision in precisions
    ]


def _unit_logits(z_ND: Tensor, W_KD: Tensor) -> Tensor:
    y_NK = z_ND.double() @ (W_KD.double() - W_KD.double().mean(0)).T
    y_NK -= y_NK.mean(0)
    return (y_NK / y_NK.square().sum(1).mean().sqrt()).float()
