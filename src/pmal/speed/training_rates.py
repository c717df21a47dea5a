"""Images per second of the training loop, of its PMAL step and of the plain loop, in turns.

A turn is an epoch of each.
"""

import dataclasses
import gc
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pmal._runtime.devices import convolutions
from pmal._runtime.seeds import seeded
from pmal._runtime.session import Session
from pmal.speed.contestants import (
    Case,
    Contestant,
    Maker,
    Plan,
    plain_training,
    pmal_training,
    reference_training,
    set_up,
)
from pmal.speed.timing import Rows, Stopwatch, in_turns, spread

Row = dict[str, Any]
SMALLEST_BATCH = 4


def measure_training(case: Case, plan: Plan, watch: Stopwatch, session: Session) -> Rows:
    """Return a row of our step and one of the PMAL step; a batch too large for the memory is halved."""
    return with_a_batch_that_fits(case, partial(_measure, plan, watch, session), session.device)


def with_a_batch_that_fits(case: Case, measure: Callable[[Case], Rows], device: torch.device) -> Rows:
    """Return what is measured of the case, or of one of half the batch size, until it fits into memory."""
    _empty_memory(device)
    try:
        with seeded(0, device), convolutions(benchmark=device.type == "cuda"):
            return measure(case)
    except torch.OutOfMemoryError:
        if case.batch_size <= SMALLEST_BATCH:
            raise
    finally:
        _empty_memory(device)
    smaller = dataclasses.replace(case, batch_size=case.batch_size // 2)
    found = with_a_batch_that_fits(smaller, measure, device)
    note = f"{case.encoder}: a batch of {case.batch_size} does not fit into memory"
    return found | {"notes": [note, *found["notes"]]}


def _measure(plan: Plan, watch: Stopwatch, session: Session, case: Case) -> Rows:
    pictures = case.pictures()
    makers: dict[str, Maker] = {
        "plain": partial(plain_training, case, pictures, plan, session),
        "pmal": partial(pmal_training, case, pictures, plan, session),
        "reference": partial(reference_training, case, pictures, session.device),
    }
    field, speeds = race(f"training {case.encoder}", makers, plan, watch, session)
    own, joint = speeds["plain"], speeds["pmal"]
    return {
        "training": [case.describe() | own | compared(own, speeds["reference"])],
        "pmal_step": [case.describe() | joint | pmal_cost(own, joint, field["pmal"])],
        "notes": [],
    }


def race(
    name: str, makers: Mapping[str, Maker], plan: Plan, watch: Stopwatch, session: Session
) -> tuple[dict[str, Contestant], dict[str, Row]]:
    """Return all contestants, and the speed of each, measured in turns."""
    with session.display.stage(name, plan.turns * len(makers), "turns") as advance:
        field = {name: set_up(make, session.device) for name, make in makers.items()}
        advance(len(makers))
        works = {name: contestant.epoch for name, contestant in field.items()}
        # Each has run once already, by itself.
        seconds = in_turns(works, watch, warmup=plan.warmup - 1, repeats=plan.repeats, advance=advance)
    return field, {name: speed_of(contestant, seconds[name]) for name, contestant in field.items()}


def speed_of(contestant: Contestant, seconds: list[float]) -> Row:
    """Return images per second, their spread, and the memory on a GPU."""
    speed = contestant.images / statistics.median(seconds)
    memory = None if contestant.memory is None else contestant.memory / 2**30
    return {"images_per_s": speed, "spread": spread(seconds), "memory_gib": memory}


def compared(own: Row, reference: Row) -> Row:
    """Return the speed of the plain loop, and how many times as fast ours is."""
    return {
        "reference_images_per_s": reference["images_per_s"],
        "ratio": own["images_per_s"] / reference["images_per_s"],
        "reference_memory_gib": reference["memory_gib"],
    }


def pmal_cost(own: Row, joint: Row, contestant: Contestant) -> Row:
    """Return the prototypes of a batch, and the time per image over that of the plain step."""
    cost = own["images_per_s"] / joint["images_per_s"]
    return {"prototypes": contestant.prototypes, "cost_per_image": cost}


def _empty_memory(device: torch.device) -> None:
    """Give back what the networks took, so that the next ones find the memory empty."""
    if device.type == "cuda":
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
