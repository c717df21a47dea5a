"""Every way to take a training step, and networks side by side, beside the plain loop."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.speed.limits import Limits, training_limits
from benchmarks.speed.strong_reference import StrongPictures
from pmal._engine.lanes import take_turns
from pmal._engine.steps import GraphStep, compiled
from pmal._runtime.seeds import seeded
from pmal._runtime.session import Session
from pmal.data.samples import Pixels
from pmal.ensemble.classifiers import AT_ONCE
from pmal.errors import UsageError, first_line, unknown_name
from pmal.speed.contestants import (
    Case,
    Contestant,
    Maker,
    Plan,
    TrainingLoop,
    plain_loop,
    plain_training,
    pmal_training,
    reference_training,
)
from pmal.speed.reference import Pictures
from pmal.speed.timing import Rows, Stopwatch, Work, in_turns
from pmal.speed.training_rates import Row, compared, pmal_cost, race, speed_of, with_a_batch_that_fits

VARIANTS = ("auto", "eager", "captured", "compiled")
"""How a step runs: as `pmal fit` chooses, as it is written, as a CUDA graph, compiled and as a CUDA graph."""
LARGEST_TOGETHER = 64
"""Pixels a side: networks of larger images fill a GPU by themselves, and take long to compile."""


def measure_variant(
    case: Case, variant: str, plan: Plan, limits: Limits, watch: Stopwatch, session: Session
) -> Rows:
    """Return a row of our step in this variant and one of the PMAL step.

    Variants do not meet each other, because not all networks together would fit into memory; each meets the
    reference. One that a machine does not have is a note.
    """
    measure = partial(_measure, variant, plan, limits, watch, session)
    try:
        return with_a_batch_that_fits(case, measure, session.device)
    except torch.OutOfMemoryError:
        raise
    except (UsageError, RuntimeError) as error:
        return {"notes": [f"{case.encoder}, {variant}: {first_line(error)}"]}


def measure_threads(case: Case, plan: Plan, watch: Stopwatch, session: Session) -> Rows:
    """Return training on the CPU with one thread, half of them and all: more are slower on shared cores."""
    every = torch.get_num_threads()
    counts = sorted({1, max(every // 2, 1), every})
    if session.device.type != "cpu" or len(counts) < 2:
        return {}
    contestant = plain_training(case, case.pictures(), plan, session)

    def epoch(count: int) -> None:
        torch.set_num_threads(count)
        contestant.epoch()

    works: dict[str, Work] = {str(count): partial(epoch, count) for count in counts}
    total = plan.turns * len(works)
    try:
        with seeded(0, session.device), session.display.stage("threads", total, "turns") as advance:
            seconds = in_turns(works, watch, warmup=plan.warmup, repeats=plan.repeats, advance=advance)
    finally:
        torch.set_num_threads(every)
    rows = [{"threads": int(count)} | speed_of(contestant, taken) for count, taken in seconds.items()]
    return {"threads": [case.describe() | row for row in rows]}


def use_variant(variant: str, loop: TrainingLoop) -> None:
    """Make a loop take its steps in this way."""
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    if variant == "auto":
        return
    objective = compiled(loop.objective) if variant == "compiled" else loop.objective
    if objective is None:
        raise UsageError("cannot be compiled: triton is missing")
    step = loop.make_step(objective)
    if variant == "eager":
        loop.take_step = step
        return
    if loop.device.type != "cuda":
        raise UsageError("only a GPU can capture a step")
    [images] = loop.data.images.stream([torch.arange(loop.batch_size)])
    loop.take_step = GraphStep(step, loop.model, images, loop.data.labels[: loop.batch_size])


def side_by_side(
    case: Case, pictures: Pixels, variant: str, plan: Plan, session: Session, networks: int = AT_ONCE
) -> Contestant:
    """Return epochs of the first phase of several networks at the same time."""
    loops = [plain_loop(case, pictures, plan, session, beside=networks - 1) for _ in range(networks)]

    def epoch() -> None:
        for loop in loops:
            if loop.take_step is None:
                with loop.lane.turn():
                    loop.model.train()
                    use_variant(variant, loop)
        for _ in take_turns([(loop.lane, loop.epoch()) for loop in loops]):
            pass
        for loop in loops:
            loop.lane.join()

    return Contestant(epoch, networks * case.images)


def _measure(
    variant: str, plan: Plan, limits: Limits, watch: Stopwatch, session: Session, case: Case
) -> Rows:
    makers = _makers(case, variant, plan, session)
    field, speeds = race(f"training {case.encoder}, {variant}", makers, plan, watch, session)
    about = case.describe() | {"variant": variant}
    joint = about | speeds["pmal"] | pmal_cost(speeds["plain"], speeds["pmal"], field["pmal"])
    return {"training": _plain_rows(case, about, speeds, limits, session), "pmal_step": [joint], "notes": []}


def _makers(case: Case, variant: str, plan: Plan, session: Session) -> dict[str, Maker]:
    pictures, device, prepare = case.pictures(), session.device, partial(use_variant, variant)
    dataset = StrongPictures if case.augmentation == "strong" else Pictures
    makers: dict[str, Maker] = {
        "plain": partial(plain_training, case, pictures, plan, session, prepare),
        "pmal": partial(pmal_training, case, pictures, plan, session, prepare),
        "reference": partial(reference_training, case, pictures, device, dataset),
    }
    if device.type == "cuda" and case.image_size <= LARGEST_TOGETHER:
        makers["together"] = partial(side_by_side, case, pictures, variant, plan, session)
    return makers


def _plain_rows(
    case: Case, about: Row, speeds: Mapping[str, Row], limits: Limits, session: Session
) -> list[dict[str, Any]]:
    """Return the rows of the first phase. Figures of networks side by side are those of all of them."""
    variant = about["variant"]
    together = {"variant": f"{variant}, {AT_ONCE} side by side", "networks": AT_ONCE}
    return [
        about
        | (together if name == "together" else {})
        | speeds[name]
        | compared(speeds[name], speeds["reference"])
        | training_limits(case, speeds[name], limits, session.device)
        for name in ("plain", "together")
        if name in speeds
    ]
