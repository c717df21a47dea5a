"""Speed at full size, with every variant of a step: python -m benchmarks.speed --name h200

    --profile             also where the time of a step goes, kernel by kernel
    --fit EPOCHS          only a complete `pmal fit`, on made-up images like a split of CIFAR-10, by stage
    --cpu-time            by the time of this process alone: one CPU thread, on a machine that others use
    --seconds 280         what has not begun by then is left out, and said so
    --encoder oscri --parts training --variants captured compiled eager

Writes benchmarks/results/speed/NAME.json after each measurement. `pmal bench` measures the same, in short.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed.limits import Limits, measure_limits, prediction_limits
from benchmarks.speed.mining import compare_mining
from benchmarks.speed.profiling import profile_step, profile_text
from benchmarks.speed.variants import measure_threads, measure_variant
from benchmarks.speed_tables import fastest
from pmal import pipeline
from pmal._runtime.devices import PRECISIONS
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import Advance, Lines
from pmal._runtime.session import Session, open_session
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.errors import UsageError
from pmal.speed.contestants import Case
from pmal.speed.measuring import Job, Sizes, choose_sizes, run_jobs
from pmal.speed.prediction import measure_prediction
from pmal.speed.reference import smooth_pictures
from pmal.speed.timing import Rows, Stopwatch

RESULTS = Path(__file__).parents[1] / "results" / "speed"
PARTS = ("mining", "prediction", "training", "threads")
"""What takes longest last."""
THREAD_SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PROFILED_STEPS = {"cuda": 20, "cpu": 2}
SMALL = 64
"""Pixels a side."""
IMAGES_PER_CLASS, KNOWN, UNKNOWN = 5000, 6, 4


class StageClock(Lines):
    """Plain lines, and how long each stage took for how much."""

    def __init__(self) -> None:
        super().__init__(every=20.0)
        self.seconds: dict[str, float] = {}
        self.before: dict[str, float] = {}
        """Seconds between the stage before and this one."""
        self._ended = time.perf_counter()
        self.work: dict[str, tuple[int, str]] = {}

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        begin = time.perf_counter()
        self.before[name] = self.before.get(name, 0.0) + begin - self._ended
        with super().stage(name, total, unit, done) as advance:
            yield advance
        self._ended = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + self._ended - begin
        self.work[name] = total, unit


def full_sizes(args: argparse.Namespace, device: torch.device) -> Sizes:
    sizes = choose_sizes(device, args.encoder, quick=False)
    plan = dataclasses.replace(sizes.plan, repeats=args.repeats)
    return dataclasses.replace(
        sizes, plan=plan, cases=tuple(full_case(case, args.precision, device) for case in sizes.cases)
    )


def full_case(case: Case, precision: str, device: torch.device) -> Case:
    """Small images on a GPU have the augmentation of the recipe that published splits are trained with."""
    strong = device.type == "cuda" and case.image_size <= SMALL
    return dataclasses.replace(
        case, precision=precision, augmentation="strong" if strong else case.augmentation
    )


def full_jobs(
    sizes: Sizes, variants: Sequence[str], limits: Limits, watch: Stopwatch, session: Session
) -> Iterator[tuple[str, str, Job]]:
    """Yield all measurements: the part that they belong to, their names, and what makes their rows."""
    at = (limits, watch, session)
    for n, k in sizes.mining:
        yield "mining", f"mining, {k} classes", partial(compare_mining, n, k, sizes.mining_repeats, *at)
    for case in sizes.cases:
        yield "prediction", f"prediction {case.encoder}", partial(predictions, case, sizes, *at)
    for case in sizes.cases:
        for variant in variants:
            job = partial(measure_variant, case, variant, sizes.plan, *at)
            yield "training", f"training {case.encoder}, {variant}", job
    yield "threads", "threads", partial(measure_threads, sizes.cases[0], sizes.plan, watch, session)


def predictions(case: Case, sizes: Sizes, limits: Limits, watch: Stopwatch, session: Session) -> Rows:
    """Return the rows of `pmal bench`, with how much of the device's limits they use."""
    rows = measure_prediction(case, sizes.prediction, watch, session)["prediction"]
    return {"prediction": [row | prediction_limits(case, row, limits) for row in rows]}


def chosen_jobs(
    jobs: Iterable[tuple[str, str, Job]], parts: Sequence[str], enough: Callable[[], bool]
) -> Iterator[tuple[str, Job]]:
    """Yield the measurements of these parts. What has not begun when the time is up leaves a note."""
    for part, name, job in jobs:
        if part in parts:
            late = {"notes": [f"{name}: not measured, because the time was up"]}
            yield name, (lambda late=late: late) if enough() else job


def own_time(device: torch.device) -> Stopwatch:
    """What this process alone used of the processor: with one thread, the time of a machine to itself."""
    if device.type != "cpu" or torch.get_num_threads() > 1:
        raise UsageError("--cpu-time measures one CPU thread: set OMP_NUM_THREADS=1 and --device cpu")
    return dataclasses.replace(Stopwatch.of(device), clock=time.process_time)


def winners(found: dict[str, Any]) -> dict[str, str]:
    """The fastest variant of each encoder's step. Of several networks at once, a step of each is the same."""
    alone = [row for row in found["training"] if row.get("networks", 1) == 1]
    return {encoder: row["variant"] for encoder, row in fastest(alone).items()}


def profile_all(sizes: Sizes, found: dict[str, Any], session: Session) -> Iterator[dict[str, Any]]:
    """Both phases of every encoder, in its fastest variant."""
    steps = PROFILED_STEPS[session.device.type]
    for case in sizes.cases:
        variant = winners(found).get(case.encoder, "auto")
        for phase in ("plain", "pmal"):
            yield profile_step(dataclasses.replace(case, steps=steps), phase, variant, session)


def made_up_cifar(path: Path, per_class: int) -> Path:
    """Ten classes of blurred 32 px pictures, each with a color and a stripe of its own, to be learned."""
    classes = KNOWN + UNKNOWN
    parts = {}
    for name, count in (("train", per_class), ("test", per_class // 5)):
        labels = np.repeat(np.arange(classes), count)
        pictures = smooth_pictures(len(labels), 32, 3, seed=count).astype(np.int16)
        style = np.random.default_rng(0).integers(-60, 60, (classes, 1, 1, 3))
        pictures += style[labels].astype(np.int16)
        for label in range(classes):
            pictures[labels == label, 3 * label : 3 * label + 2] += 40
        parts |= {f"x_{name}": pictures.clip(0, 255).astype(np.uint8), f"y_{name}": labels}
    np.savez(path, **parts)
    return path


def time_fit(epochs: int, per_class: int, device: str) -> dict[str, Any]:
    """A complete run: 2 + 1 trainings of OSCRI, mining, calibration and evaluation."""
    clock = StageClock()
    with tempfile.TemporaryDirectory() as folder:
        data = {"family": "random", "num_known": KNOWN}
        data["source"] = str(made_up_cifar(Path(folder) / "cifar.npz", per_class))
        chosen = {"data": data, "training": {"epochs": epochs}}
        config = build(RunConfig, merge(read_recipe("strong"), chosen))
        session = open_session(Resources(device=device), clock)
        begin = time.perf_counter()
        metrics = pipeline.fit(config, Path(folder) / "run", session)
        seconds = time.perf_counter() - begin
    images = KNOWN * per_class
    about = {"encoder": config.encoder.name, "epochs": epochs, "trainings": 3, "training_images": images}
    accuracy = metrics["accuracy"]["value"]
    return {"fit": {**about, "seconds": seconds, "stages": clock.seconds, "accuracy": accuracy}}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", help="of the result's file; default: the device's type")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--encoder", nargs="+", default=[])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--variants", nargs="+", default=[])
    parser.add_argument("--precision", default="auto", choices=PRECISIONS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cpu-time", action="store_true", help="of this process, where others are running")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--fit", type=int, metavar="EPOCHS")
    parser.add_argument("--per-class", type=int, default=IMAGES_PER_CLASS, help="training images, for --fit")
    parser.add_argument("--note", default="", help="what a reader must know, such as other load")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    args, begin = parse_arguments(), time.monotonic()
    session = open_session(Resources(device=args.device), Lines(every=20.0))
    path = make_folder(args.out) / f"{args.name or session.device.type}.json"
    if args.fit:
        found = time_fit(args.fit, args.per_class, args.device)
        found["manifest"] = describe_environment(session.device)
        write_json(path, found)
        print(json.dumps(found["fit"], indent=2))
        return
    sizes = full_sizes(args, session.device)
    watch = own_time(session.device) if args.cpu_time else Stopwatch.of(session.device)
    limits = measure_limits(session.device, watch)
    variants = args.variants or (("captured", "compiled") if session.device.type == "cuda" else ("auto",))
    jobs = full_jobs(sizes, variants, limits, watch, session)
    chosen = chosen_jobs(jobs, args.parts, lambda: time.monotonic() - begin > args.seconds)
    found: dict[str, Any] = {}
    for found in run_jobs(chosen, session):
        write_json(path, found | {"limits": limits.describe()})
    found["limits"] = limits.describe()
    settings = {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ}
    found["clock"] = "time of this process" if args.cpu_time else "wall"
    found |= {"winners": winners(found), "profile": [], "environment": settings, "note": args.note}
    for row in profile_all(sizes, found, session) if args.profile else ():
        found["profile"].append(row)
        write_json(path, found)
        print(profile_text(row), flush=True)
    found["seconds"] = time.monotonic() - begin
    write_json(path, found)
    for row in found["training"]:
        print(f"{row['encoder']}, {row['variant']}: {row['images_per_s']:,.0f} images/s, {row['ratio']:.2f}")
    print(f"fastest steps: {found['winners']}; {found['seconds']:.0f} s in all; {path}")


if __name__ == "__main__":
    main()
