"""How long the cells of a plan will take, from the speed of cells in the ledger."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pmal._runtime.text import duration
from pmal.benchmark.cells.cell import FIT, Cell
from pmal.benchmark.cells.shared import Key, classifier_keys
from pmal.benchmark.grid import Planned
from pmal.benchmark.ledger import Result
from pmal.methods import METHODS

_HARDWARE = ("gpu", "machine", "threads")


@dataclass(frozen=True)
class Estimate:
    """Trainings that a cell still needs, and their seconds. None: they cannot be estimated."""

    trainings: int
    seconds: float | None
    because: str = ""


def estimate_cells(
    planned: Sequence[Planned],
    results: Sequence[Result],
    hardware: Mapping[str, Any],
    *,
    device: str,
    trained: Callable[[Key], bool],
    count_images: Callable[[Cell], int | None],
) -> list[Estimate]:
    """Return an estimate of each cell, in the order of the plan.

    A training that several cells share counts for the first of them only.

    Args:
        planned: cells to compute.
        results: finished cells, whose speed is used.
        hardware: of this machine; only results from the same hardware count.
        device: cpu or cuda.
        trained: returns whether a classifier is in the store.
        count_images: returns the number of training images of a cell. None: the data are not here.
    """
    done: set[Key] = set()
    found = []
    for one in planned:
        keys = classifier_keys(one.cell.config(), device)
        new = [key for key in keys if key not in done and not trained(key)]
        done.update(keys)
        second = METHODS[one.cell.method].second and one.cell.measure == FIT
        epochs = len(new) * one.cell.epochs + second * one.cell.config().second_training.epochs
        found.append(_estimate(one.cell, len(new) + second, epochs, results, hardware, count_images))
    return found


def _estimate(
    cell: Cell,
    trainings: int,
    epochs: int,
    results: Sequence[Result],
    hardware: Mapping[str, Any],
    count_images: Callable[[Cell], int | None],
) -> Estimate:
    if not trainings:
        return Estimate(0, 0.0)
    speed = usual_speed(cell, results, hardware)
    if speed is None:
        return Estimate(trainings, None, f"no cell of {cell.encoder} on this hardware yet")
    images = count_images(cell)
    if images is None:
        return Estimate(trainings, None, "the data are not here")
    return Estimate(trainings, epochs * images / speed)


def usual_speed(cell: Cell, results: Sequence[Result], hardware: Mapping[str, Any]) -> float | None:
    """Return the median images per second of the most similar cells. None: there are none.

    Only cells with the same encoder on the same hardware count.
    """
    alike = [
        result
        for result in results
        for used in [result.record.get("manifest", {}).get("hardware", {})]
        if result.cell.encoder == cell.encoder
        and "images_per_s_median" in result.record
        and not result.record.get("beside")
        and all(used.get(name) == hardware.get(name) for name in _HARDWARE)
    ]
    for names in (("method", "source"), ("source",), ()):
        chosen = [r for r in alike if all(getattr(r.cell, n) == getattr(cell, n) for n in names)]
        if chosen:
            return float(statistics.median(r.record["images_per_s_median"] for r in chosen))
    return None


def describe(estimate: Estimate | None) -> str:
    """Return the line about one cell. None: the cell is in the ledger already.

    >>> describe(None), describe(Estimate(1, 65.0))
    ('in the ledger', '1 training, 1 min 05 s')
    """
    if estimate is None:
        return "in the ledger"
    trainings = f"{estimate.trainings} training{'s' * (estimate.trainings != 1)}"
    if estimate.seconds is None:
        return f"{trainings}, no estimate ({estimate.because})"
    return f"{trainings}, {duration(estimate.seconds)}"


def total(estimates: Sequence[Estimate], planned: int) -> str:
    """Return the line about all cells."""
    known = [estimate.seconds for estimate in estimates if estimate.seconds is not None]
    missing = len(estimates) - len(known)
    text = f"{len(estimates)} of {planned} cells to compute"
    text += f": {duration(sum(known))} of training" if known else ""
    return text + (f"; {missing} without an estimate" if missing else "")
