"""Pairs per second of the topology distance, beside what else computes it: python benchmarks/mining.py

All of them in one run, on the same samples: two spaces of K classes, clustered, that differ by noise. Every
method gives x of `topology="unit"` for all samples; its error is against float64, on 64 samples. Ours starts
from embeddings and class weights, with all checks; the others from the centered logits in float32. Where
a method has a block size, the best of several is taken; each time is the best of --repeat turns.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.speed.mining import BLOCKS, cdist_distance, distance_from_products, unit_logits
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import topology_distance
from pmal.geometry.torch_kernel import distance_block
from pmal.mining.candidates import select_candidates
from pmal.speed.mining import Problem


@dataclass(frozen=True)
class Row:
    method: str
    k: int
    n: int
    seconds: float
    gpairs_per_second: float
    tflops: float
    """Two multiply-adds per class and pair, as a method without use of symmetry does them."""
    error: float
    """Largest relative error of x."""
    ratio: float | None
    """Speed over that of torch.cdist, in the same run."""
    same_candidates: float
    """Share of the samples that are candidates, or not, as with the exact mode."""


def right(problem: Problem, rows: Tensor) -> Tensor:
    """x of these rows in float64."""
    units = []
    for z, W in (problem.first, problem.second):
        y = centered_logits(z, W)
        t = distance_block(y[rows], y)
        units.append(t / t.norm(dim=1, keepdim=True))
    return (units[0] - units[1]).norm(dim=1).cpu()


def sklearn_chunks(a: Tensor, b: Tensor) -> Tensor:
    from sklearn.metrics import pairwise_distances_chunked

    options = {"metric": "euclidean", "working_memory": 64}
    chunks = zip(*(pairwise_distances_chunked(y.numpy(), **options) for y in (a, b)), strict=True)
    return distance_from_products(
        torch.cat([torch.from_numpy((d_a * d_b).sum(1)) for d_a, d_b in chunks]), a, b
    )


def keops(a: Tensor, b: Tensor) -> Tensor:
    from pykeops.torch import LazyTensor

    squares = [((LazyTensor(y[:, None]) - LazyTensor(y[None])) ** 2).sum(-1) for y in (a, b)]
    return distance_from_products((squares[0] * squares[1]).sqrt().sum(1)[:, 0], a, b)


def methods(problem: Problem, device: str) -> dict[str, list[Callable[[], Tensor]]]:
    """What to run for each name; the best of a list counts."""
    a, b = unit_logits(problem)
    found: dict[str, list[Callable[[], Tensor]]] = {
        "torch.cdist": [lambda block=block: cdist_distance(a, b, block) for block in BLOCKS]
    }
    for precision in ("exact", "fast"):
        if precision == "exact" or device != "cpu":
            found[f"pmal {precision}"] = [
                lambda precision=precision: (
                    topology_distance(problem.first, problem.second, precision=precision, device=device).x
                )
            ]
    if device == "cpu":
        found["sklearn"] = [lambda: sklearn_chunks(a, b)]
    if importlib.util.find_spec("pykeops"):
        found["PyKeOps"] = [lambda: keops(a, b)]
    return found


def timed(run: Callable[[], Tensor], device: str) -> tuple[float, Tensor]:
    begin = time.perf_counter()
    x = run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, x.cpu()


def candidates(x: Tensor, problem: Problem) -> Tensor:
    """Who would become a candidate: what the digits of x are for."""
    return select_candidates(-x / x.median(), problem.labels)


def measure(n: int, k: int, device: str, repeat: int, only: str) -> list[Row]:
    problem = Problem.draw(n, k, device)
    samples = torch.linspace(0, n - 1, 64).long()
    truth = right(problem, samples.to(device))
    competing = {name: runs for name, runs in methods(problem, device).items() if only in name}
    seconds: dict[str, float] = {}
    found: dict[str, Tensor] = {}
    for turn in range(repeat + 1):  # in turns, so that other load on the machine meets all of them
        for name, runs in competing.items():
            for run in runs:
                took, found[name] = timed(run, device)
                if turn:  # the first compiles
                    seconds[name] = min(took, seconds.get(name, took))
    chosen = {name: candidates(x, problem) for name, x in found.items()}
    measured = []
    for name, took in seconds.items():
        speed = n * n / took
        row = Row(
            method=name,
            k=k,
            n=n,
            seconds=took,
            gpairs_per_second=speed / 1e9,
            tflops=4 * k * speed / 1e12,
            error=float((found[name][samples] / truth - 1).abs().max()),
            ratio=seconds["torch.cdist"] / took if "torch.cdist" in seconds else None,
            same_candidates=float((chosen[name] == chosen["pmal exact"]).double().mean()),
        )
        print(describe(row), flush=True)
        measured.append(row)
    return measured


def describe(row: Row) -> str:
    text = (
        f"N {row.n:9,d}  K {row.k:5d}  {row.method:12s} {row.seconds:9.3f} s"
        f" {row.gpairs_per_second:9.3f} Gpairs/s {row.tflops:8.2f} TFLOP/s  error {row.error:7.1e}"
    )
    if row.ratio is not None:
        text += f"  {row.ratio:6.2f} x torch.cdist"
    return f"{text}  same candidates as exact {100 * row.same_candidates:.3f} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[20_000], help="samples")
    parser.add_argument("--k", type=int, nargs="+", default=[4, 20, 200], help="classes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="methods with this in their name")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    manifest = describe_environment(torch.device(options.device))
    print(json.dumps(manifest["hardware"]))
    rows = []
    for n in options.n:
        for k in options.k:
            rows += measure(n, k, options.device, options.repeat, options.only)
            if options.json:
                make_folder(options.json.parent)
                write_json(options.json, {"rows": [asdict(row) for row in rows], "manifest": manifest})


if __name__ == "__main__":
    main()
