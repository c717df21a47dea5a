"""The cells of a plan, one after another or several at a time, each in a process of its own then.

A cell waits while another one trains a classifier that it needs. A cell that fails is reported in one line,
and the others go on.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from pmal._runtime.devices import choose_device
from pmal._runtime.processes.gpu_sharing import shared_gpu
from pmal._runtime.progress import Display, Lines
from pmal._runtime.session import Session, open_session
from pmal._runtime.signals import (
    leave_interrupts_to_parent,
    raise_on_signals,
    stop_with_parent,
    uninterrupted_starts,
)
from pmal.benchmark.cells.running import Places, run_cell
from pmal.benchmark.cells.shared import Key, classifier_keys
from pmal.benchmark.grid import Planned
from pmal.benchmark.watching import Named
from pmal.config import Resources
from pmal.errors import DataError, Interrupted, PmalError, out_of_memory
from pmal.plugins import load_plugin, named_plugins

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray

GO_ON = "run the same command again to resume where it stopped"
_LOOK_SECONDS = 0.5
"""How often those that wait look whether the classifier that they need is there."""


def missing_cells(planned: Sequence[Planned], places: Places, display: Display) -> list[Planned]:
    """Return the cells that are not in the ledger. A broken record is reported, and counts as missing."""
    missing = []
    for one in planned:
        try:
            found = places.ledger.read(one.cell)
        except DataError as error:
            display.say(f"{error}; it is computed again")
            found = None
        if found is None:
            missing.append(one)
    return missing


def run_one_by_one(planned: Sequence[Planned], places: Places, session: Session) -> list[str]:
    """Run the cells; return the names of those that failed."""
    failed = []
    for number, one in enumerate(planned, 1):
        session.display.say(f"cell {number} of {len(planned)}: {one.cell.name}")
        try:
            run_cell(one, places, session)
        except (PmalError, OSError) as error:
            session.display.say(f"error: {one.cell.name}: {error}")
            failed.append(one.cell.name)
        except Exception as error:  # a fault of the method: hours of other cells need not be lost with it
            reason = out_of_memory(error) or traceback.format_exc()
            session.display.say(f"error: {one.cell.name}: {reason}")
            failed.append(one.cell.name)
    return failed


@dataclass
class _Running:
    process: BaseProcess
    position: int
    training: list[Key]


def run_at_once(
    planned: Sequence[Planned], places: Places, resources: Resources, jobs: int, display: Display
) -> list[str]:
    """Run up to `jobs` cells at a time, side by side on one GPU; return the names of those that failed."""
    gpu = choose_device(resources.device).type == "cuda"
    with shared_gpu() if gpu else contextlib.nullcontext():
        return _run_processes(planned, places, resources, jobs, display)


def _run_processes(
    planned: Sequence[Planned], places: Places, resources: Resources, jobs: int, display: Display
) -> list[str]:
    # A forked process could not use the GPU that this one has seen.
    context = multiprocessing.get_context("spawn")
    beside = context.Array("i", len(planned))
    waiting, running = list(range(len(planned))), list[_Running]()
    failed: list[str] = []
    try:
        while waiting or running:
            ready = _next_ready(waiting, running, planned, places, resources) if len(running) < jobs else None
            if ready is not None:
                position, training = ready
                waiting.remove(position)
                display.say(f"cell {position + 1} of {len(planned)}: {planned[position].cell.name}")
                words = (planned[position], places, resources, position, beside, named_plugins())
                process = context.Process(target=_work, args=words)
                with uninterrupted_starts():
                    process.start()
                    running.append(_Running(process, position, training))
                for other in running:  # the most that ever ran at the same time
                    beside[other.position] = max(beside[other.position], len(running) - 1)
                continue
            wait([one.process.sentinel for one in running], timeout=_LOOK_SECONDS)
            for one in [one for one in running if one.process.exitcode is not None]:
                running.remove(one)
                if one.process.exitcode:
                    failed.append(planned[one.position].cell.name)
                    if reason := _killed(one.process.exitcode):
                        display.say(f"error: {failed[-1]}: {reason}")
    finally:
        for one in running:
            one.process.terminate()
        for one in running:  # each saves a checkpoint first
            one.process.join()
    return failed


def _killed(exitcode: int | None) -> str:
    """Return what a process could not say itself; an empty text if it ended by itself.

    >>> _killed(-9), _killed(3)
    ('its process was killed (SIGKILL; the memory of the machine may be used up)', '')
    """
    if exitcode is None or exitcode >= 0:
        return ""
    name = signal.Signals(-exitcode).name
    hint = "; the memory of the machine may be used up" if name == "SIGKILL" else ""
    return f"its process was killed ({name}{hint})"


def _next_ready(
    waiting: Sequence[int],
    running: Sequence[_Running],
    planned: Sequence[Planned],
    places: Places,
    resources: Resources,
) -> tuple[int, list[Key]] | None:
    """Return the first cell that need not wait for a classifier of another, and what it will train itself."""
    device = choose_device(resources.device)
    store = places.store(device)
    in_training = {key for one in running for key in one.training if key not in store}
    for position in waiting:
        keys = classifier_keys(planned[position].cell.config(), device.type)
        if not in_training.intersection(keys):
            return position, [key for key in keys if key not in store]
    return None


def _work(
    one: Planned,
    places: Places,
    resources: Resources,
    position: int,
    beside: "SynchronizedArray[Any]",
    plugins: Sequence[str],
) -> None:
    """Run a cell in a process of its own."""
    # Ctrl-C in a terminal would come twice, from it and from the parent, and a second signal saves nothing.
    os.setpgrp()
    leave_interrupts_to_parent()  # one that came while this process started
    try:
        raise_on_signals(GO_ON)
        stop_with_parent()
        for module in plugins:
            load_plugin(module)
        session = open_session(resources, Named(Lines(), f"cell {position + 1}"))
        run_cell(one, places, session, lambda: int(beside[position]))
    except (PmalError, Interrupted, OSError) as error:
        print(f"error: {one.cell.name}: {error}", file=sys.stderr, flush=True)
        # The interpreter's end would wait for threads of a broken training.
        os._exit(PmalError.exit_code if isinstance(error, OSError) else error.exit_code)
