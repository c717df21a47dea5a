"""Pairs per second of the topology distance. N samples, K classes."""

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.session import Session
from pmal.geometry.robustness import topology_distance
from pmal.speed.timing import Rows, Stopwatch, Work, in_turns, spread


@dataclass(frozen=True)
class Problem:
    """Two spaces of K classes, clustered, that differ by noise: embeddings and class weights of each."""

    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    labels: Tensor

    @classmethod
    def draw(cls, n: int, k: int, device: str | torch.device) -> "Problem":
        """Return a problem of n random samples of k classes."""
        generator, channels = torch.Generator(device).manual_seed(k), max(64, k)
        W_KD = torch.randn(k, channels, generator=generator, device=device)
        labels_N = torch.randint(k, (n,), generator=generator, device=device)
        noise = [torch.randn(n, channels, generator=generator, device=device) for _ in range(2)]
        z_ND = 2 * W_KD[labels_N] + noise[0]
        return cls((z_ND, W_KD), (z_ND + noise[1], W_KD), labels_N.cpu())


def measure_mining(n: int, k: int, repeats: int, watch: Stopwatch, session: Session) -> Rows:
    """Return a row for each precision: on a GPU there are two."""
    works = topology_works(Problem.draw(n, k, session.device), session.device)
    with session.display.stage(f"mining, {k} classes", (1 + repeats) * len(works), "turns") as advance:
        seconds = in_turns(works, watch, warmup=1, repeats=repeats, advance=advance)
    return {"mining": [mining_row(n, k, precision, taken) for precision, taken in seconds.items()]}


def topology_works(problem: Problem, device: torch.device) -> dict[str, Work]:
    """Return the topology distance of a problem, by precision."""
    precisions = ("exact", "fast") if device.type == "cuda" else ("exact",)
    distance = partial(topology_distance, problem.first, problem.second, device=device)
    return {precision: partial(distance, precision=precision) for precision in precisions}


def mining_row(n: int, k: int, precision: str, seconds: list[float]) -> dict[str, Any]:
    """Return the figures of these turns."""
    speed = n * n / statistics.median(seconds)
    return {"n": n, "k": k, "precision": precision, "gpairs_per_s": speed / 1e9, "spread": spread(seconds)}
