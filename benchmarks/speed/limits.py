"""What a device reaches on the simplest work, and how much of that a training or an answer uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.speed.training_cost import training_cost
from pmal._runtime.devices import choose_precision
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.cost import multiplications
from pmal.speed.contestants import Case
from pmal.speed.timing import Stopwatch, Work, in_turns

PRODUCT_SIDE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Several times what a cache holds."""
NUMBER_BYTES = {"float32": 4, "bfloat16": 2}
Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What the device reaches on the simplest work of each kind."""

    flops: Mapping[str, float]
    """Per second, in a large matrix product, by type of number."""
    copy_bytes: float
    """Per second, read plus written, in a large copy."""

    def describe(self) -> dict[str, float]:
        rates = {f"{name}_tflops": value / 1e12 for name, value in self.flops.items()}
        return {**rates, "copy_gb_per_s": self.copy_bytes / 1e9}


def measure_limits(device: torch.device, watch: Stopwatch, repeats: int = 5) -> Limits:
    """The best of several turns each: what no program passes, however idle the machine."""
    side, size = PRODUCT_SIDE[device.type], COPY_BYTES[device.type]
    # Random numbers: products of zeros draw less power, and so run faster than any real data.
    a = torch.randn(side, side, device=device)
    works: dict[str, Work] = {"float32": lambda: a @ a}
    half = a.bfloat16()
    works["bfloat16"] = lambda: half @ half
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    works["copy"] = lambda: target.copy_(source)
    seconds = in_turns(works, watch, warmup=2, repeats=repeats)
    best = {name: min(taken) for name, taken in seconds.items()}
    flops = {name: 2 * side**3 / best[name] for name in ("float32", "bfloat16")}
    return Limits(flops, 2 * size / best["copy"])


def training_limits(case: Case, row: Row, limits: Limits, device: torch.device) -> Row:
    """Return how much of the device's limits the steps of a row use."""
    precision, cost = choose_precision(device, case.precision), training_cost(_network(case))
    flops = cost.flops * row["images_per_s"]
    volume = cost.numbers * NUMBER_BYTES[precision]
    return {
        "precision": precision,
        "gflops_per_image": cost.flops / 1e9,
        "tflops": flops / 1e12,
        "share_of_peak": flops / limits.flops[precision],
        "mb_per_image": volume / 1e6,
        "share_of_bandwidth": volume * row["images_per_s"] / limits.copy_bytes,
    }


def prediction_limits(case: Case, row: Row, limits: Limits) -> Row:
    """Return how much of the device's matrix products the answers of a row use."""
    flops = 2 * multiplications(_network(case))
    # Matrix products of float16 and bfloat16 have the same rate.
    peak = limits.flops["float32" if row["precision"] == "float32" else "bfloat16"]
    return {"gflops_per_image": flops / 1e9, "share_of_peak": flops * row["images_per_s"] / peak}


def _network(case: Case) -> Classifier:
    return case.network(torch.device("cpu"))
