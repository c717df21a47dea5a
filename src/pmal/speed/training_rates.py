"""Images per second of the training loop, of its PMAL step and of the reference loop, in turns.

A turn is an epoch of each.
"""

import dataclasses
import gc
import statistics
from functools import partial
from typing import Any

import torch

from pmal._runtime.devices import choose_precision, convolutions
from pmal._runtime.seeds import seeded
from pmal._runtime.session import Session
from pmal.ensemble.classifiers import AT_ONCE
from pmal.ensemble.cost import network_cost
from pmal.errors import UsageError, first_line
from pmal.speed.contestants import (
    Case,
    Contestant,
    Maker,
    Plan,
    plain_training,
    pmal_training,
    reference_training,
    set_up,
    side_by_side,
)
from pmal.speed.timing import Limits, Stopwatch, Work, in_turns, spread

Row = dict[str, Any]
SMALLEST_BATCH = 4
LARGEST_TOGETHER = 64
"""Pixels a side: networks of larger images fill a GPU by themselves, and take long to compile."""
NUMBER_BYTES = {"float32": 4, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class Trainings:
    """What was measured of one network."""

    plain: list[Row]
    pmal: list[Row]
    notes: list[str]


def measure_training(case: Case, plan: Plan, limits: Limits, watch: Stopwatch, session: Session) -> Trainings:
    """A row of our step and one of the PMAL step for every variant.

    Variants do not meet each other, because not all networks together would fit into memory; each meets the
    reference. A batch too large for the memory even so is halved.
    """
    found = Trainings([], [], [])
    for variant in plan.variants:
        measured = _measure_fitting(case, variant, plan, limits, watch, session)
        found.plain.extend(measured.plain)
        found.pmal.extend(measured.pmal)
        found.notes.extend(measured.notes)
    return found


def measure_threads(case: Case, plan: Plan, watch: Stopwatch, session: Session) -> list[Row]:
    """Training on the CPU with one thread, half of them and all: more are slower where cores are shared."""
    every = torch.get_num_threads()
    counts = sorted({1, max(every // 2, 1), every})
    if session.device.type != "cpu" or len(counts) < 2:
        return []
    contestant = plain_training(case, case.pictures(), "auto", plan, session)

    def epoch(count: int) -> None:
        torch.set_num_threads(count)
        contestant.epoch()

    works: dict[str, Work] = {str(count): partial(epoch, count) for count in counts}
    try:
        with seeded(0, session.device), _stage("threads", plan.turns, works, session) as advance:
            seconds = in_turns(works, watch, warmup=plan.warmup, repeats=plan.repeats, advance=advance)
    finally:
        torch.set_num_threads(every)
    return [case.describe() | {"threads": int(n)} | _speed(contestant, taken) for n, taken in seconds.items()]


def _measure_fitting(
    case: Case, variant: str, plan: Plan, limits: Limits, watch: Stopwatch, session: Session
) -> Trainings:
    device = session.device
    _empty_memory(device)
    try:
        with seeded(0, device), convolutions(benchmark=device.type == "cuda"):
            return _measure(case, variant, plan, limits, watch, session)
    except torch.OutOfMemoryError:
        if case.batch_size <= SMALLEST_BATCH:
            raise
    finally:
        _empty_memory(device)
    smaller = dataclasses.replace(case, batch_size=case.batch_size // 2)
    found = _measure_fitting(smaller, variant, plan, limits, watch, session)
    note = f"{case.encoder}, {variant}: a batch of {case.batch_size} does not fit into memory"
    return dataclasses.replace(found, notes=[note, *found.notes])


def _measure(
    case: Case, variant: str, plan: Plan, limits: Limits, watch: Stopwatch, session: Session
) -> Trainings:
    pictures, device = case.pictures(), session.device
    makers: dict[str, Maker] = {
        "plain": partial(plain_training, case, pictures, variant, plan, session),
        "pmal": partial(pmal_training, case, pictures, variant, plan, session),
        "reference": partial(reference_training, case, pictures, device),
    }
    if device.type == "cuda" and case.image_size <= LARGEST_TOGETHER:
        makers["together"] = partial(side_by_side, case, pictures, variant, plan, session, AT_ONCE)
    with _stage(f"training {case.encoder}, {variant}", plan.turns, makers, session) as advance:
        field, notes = _gather(makers, device)
        advance(len(makers))
        works = {name: contestant.epoch for name, contestant in field.items()}
        # Each has run once already, by itself.
        seconds = in_turns(works, watch, warmup=plan.warmup - 1, repeats=plan.repeats, advance=advance)
    speeds = {name: _speed(contestant, seconds[name]) for name, contestant in field.items()}
    found = Trainings([], [], [f"{case.encoder}, {variant}, {note}" for note in notes])
    about = case.describe() | {"variant": variant}
    for name in ("plain", "together"):
        if (speed := speeds.get(name)) is not None:
            rates = _compared(speed, speeds.get("reference")) | _limits_used(case, speed, limits, device)
            found.plain.append(about | _beside(variant, field[name].networks) | speed | rates)
    if (own := speeds.get("plain")) is not None and (joint := speeds.get("pmal")) is not None:
        cost, count = own["images_per_s"] / joint["images_per_s"], field["pmal"].prototypes
        found.pmal.append(about | {"prototypes": count} | joint | {"cost_per_image": cost})
    return found


def _beside(variant: str, networks: int) -> Row:
    """What a row says of networks that trained at the same time; its figures are those of all of them."""
    return {"variant": f"{variant}, {networks} side by side", "networks": networks} if networks > 1 else {}


def _gather(makers: dict[str, Maker], device: torch.device) -> tuple[dict[str, Contestant], list[str]]:
    """Everybody who can take part, after a first run; and notes of who cannot."""
    field, notes = {}, []
    for name, make in makers.items():
        try:
            field[name] = set_up(make, device)
        except torch.OutOfMemoryError:
            raise
        except (UsageError, RuntimeError) as error:
            # One variant that a machine does not have is no reason to measure nothing.
            notes.append(f"{name}: {first_line(error)}")
    return field, notes


def _stage(name: str, turns: int, works: dict[str, Any], session: Session) -> Any:
    return session.display.stage(name, turns * len(works), "turns")


def _speed(contestant: Contestant, seconds: list[float]) -> Row:
    speed = contestant.images / statistics.median(seconds)
    memory = None if contestant.memory is None else contestant.memory / 2**30
    return {"images_per_s": speed, "spread": spread(seconds), "memory_gib": memory}


def _compared(own: Row, reference: Row | None) -> Row:
    if reference is None:
        return {"reference_images_per_s": None, "ratio": None, "reference_memory_gib": None}
    return {
        "reference_images_per_s": reference["images_per_s"],
        "ratio": own["images_per_s"] / reference["images_per_s"],
        "reference_memory_gib": reference["memory_gib"],
    }


def _limits_used(case: Case, own: Row, limits: Limits, device: torch.device) -> Row:
    """How much of the device's limits the steps use."""
    precision, cost = (
        choose_precision(device, case.precision),
        network_cost(case.network(torch.device("cpu"))),
    )
    flops = cost.training_flops * own["images_per_s"]
    volume = cost.training_numbers * NUMBER_BYTES[precision]
    return {
        "precision": precision,
        "gflops_per_image": cost.training_flops / 1e9,
        "tflops": flops / 1e12,
        "share_of_peak": flops / limits.flops[precision],
        "mb_per_image": volume / 1e6,
        "share_of_bandwidth": volume * own["images_per_s"] / limits.copy_bytes,
    }


def _empty_memory(device: torch.device) -> None:
    """What the networks took goes back, so that the next ones find the memory empty."""
    if device.type == "cuda":
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
