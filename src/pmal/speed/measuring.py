"""This machine's figures: training, the PMAL step, mining and prediction, next to a plain loop, in one run.

Everything is made up; nothing is read, downloaded or written. See docs/speed.md for how to read it.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session
from pmal.encoders.registry import create_encoder
from pmal.errors import first_line
from pmal.speed.contestants import Case, Plan
from pmal.speed.mining import measure_mining
from pmal.speed.prediction import PredictionPlan, measure_prediction
from pmal.speed.timing import Rows, Stopwatch
from pmal.speed.training_rates import measure_training

Found = dict[str, Any]
Job = Callable[[], Rows]
KINDS = ("training", "pmal_step", "mining", "prediction", "notes")
BUSY = 0.5
"""Load per core from which on a machine is shared."""
MINING_CLASSES = (4, 20, 1000)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    cases: tuple[Case, ...]
    plan: Plan
    mining: tuple[tuple[int, int], ...]
    """Samples and classes."""
    mining_repeats: int
    prediction: PredictionPlan

    def with_encoders(self, names: Sequence[str]) -> "Sizes":
        """Return the cases of these encoders alone; one without a case is measured on 32 px images."""
        known = {case.encoder: case for case in self.cases}
        other = dataclasses.replace(self.cases[0], image_size=32, channels=3)
        for name in names:
            create_encoder(name, other.channels, other.image_size)
        cases = tuple(known.get(name) or dataclasses.replace(other, encoder=name) for name in names)
        return dataclasses.replace(self, cases=cases)


GPU = Sizes(
    cases=(
        Case("oscri", 32, 128, steps=200),
        Case("wide_resnet", 32, 128, steps=50),
        Case("resnet50", 224, 256, steps=5, classes=100),
    ),
    plan=Plan(),
    mining=tuple((50_000, k) for k in MINING_CLASSES),
    mining_repeats=5,
    prediction=PredictionPlan(images=524_288, calls=300, repeats=3, trial=2048),
)
GPU_QUICK = Sizes(
    cases=(Case("oscri", 32, 128, steps=100), Case("wide_resnet", 32, 128, steps=20)),
    plan=Plan(repeats=3, long=False),
    mining=tuple((20_000, k) for k in MINING_CLASSES),
    mining_repeats=3,
    prediction=PredictionPlan(images=65_536, calls=50, repeats=3, trial=2048, seconds=0.2),
)
CPU = Sizes(
    cases=(
        Case("small", 28, 64, steps=4, channels=1),
        Case("oscri", 32, 32, steps=1),
        Case("wide_resnet", 32, 8, steps=1, classes=4),
        Case("resnet50", 224, 2, steps=1, classes=2),
    ),
    plan=Plan(),
    mining=((8192, 4), (8192, 20), (2304, 1000)),
    mining_repeats=3,
    prediction=PredictionPlan(images=512, calls=100, repeats=3),
)
CPU_QUICK = Sizes(
    cases=(Case("small", 28, 32, steps=2, channels=1),),
    plan=Plan(repeats=2),
    mining=((2500, 4), (2500, 20)),
    mining_repeats=2,
    prediction=PredictionPlan(images=32, calls=10, repeats=2, seconds=0.2, bank=2000),
)


def choose_sizes(device: torch.device, encoders: Sequence[str], quick: bool) -> Sizes:
    """Return sizes for about a minute on two CPU cores; on a GPU most of the time goes into compiling."""
    gpu = device.type == "cuda"
    sizes = (GPU_QUICK if quick else GPU) if gpu else (CPU_QUICK if quick else CPU)
    return sizes.with_encoders(encoders) if encoders else sizes


def run_bench(sizes: Sizes, session: Session, watch: Stopwatch | None = None) -> Found:
    """Return all figures, ready for JSON. watch: another clock than the usual one."""
    watch = watch or Stopwatch.of(session.device)
    *_, found = run_jobs(all_jobs(sizes, watch, session), session)
    return found


def run_jobs(jobs: Iterable[tuple[str, Job]], session: Session) -> Iterator[Found]:
    """Yield what there is so far after each measurement; one that fails leaves a note."""
    found: Found = {"manifest": describe_environment(session.device), "load": _load()}
    found |= {name: [] for name in KINDS}
    if found["load"] is not None and found["load"] > BUSY * (os.cpu_count() or 1):
        found["notes"].append(f"others used the processor (load {found['load']:.1f}): only the ratios hold")
    for name, measure in jobs:
        try:
            for kind, rows in measure().items():
                found.setdefault(kind, []).extend(rows)
        except RuntimeError as error:
            # What a machine cannot do, for want of memory say, is no reason to measure nothing else.
            found["notes"].append(f"{name}: {first_line(error)}")
        yield found


def all_jobs(sizes: Sizes, watch: Stopwatch, session: Session) -> Iterator[tuple[str, Job]]:
    """Yield names of measurements, and what makes their rows by kind. What takes longest comes last."""
    for n, k in sizes.mining:
        yield f"mining, {k} classes", partial(measure_mining, n, k, sizes.mining_repeats, watch, session)
    for case in sizes.cases:
        predict = partial(measure_prediction, case, sizes.prediction, watch, session)
        yield f"prediction {case.encoder}", predict
    for case in sizes.cases:
        yield f"training {case.encoder}", partial(measure_training, case, sizes.plan, watch, session)


def _load() -> float | None:
    """Return how many programs wanted to run in the last minute; None if nobody counts."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
