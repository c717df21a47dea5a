"""One cell: run the stages that are not done yet, write its record, delete its run folder.

The run folder stays until the record is written. If the process is killed, the same command resumes at
the stage and step where it stopped.
"""

import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pmal import pipeline
from pmal._runtime.files import make_folder, read_events, read_json
from pmal._runtime.session import Session
from pmal.benchmark.cells.cell import ENSEMBLE, FIT, FLUCTUATION, Cell
from pmal.benchmark.cells.fluctuation import measure_fluctuation
from pmal.benchmark.cells.passes import cell_passes
from pmal.benchmark.cells.shared import ClassifierStore, classifier_keys
from pmal.benchmark.cells.softmax_ensemble import measure_ensemble
from pmal.benchmark.grid import Planned
from pmal.benchmark.ledger import Ledger
from pmal.benchmark.watching import Watched, note, stage_seconds
from pmal.config import RunConfig
from pmal.data.splits.task import open_task
from pmal.errors import PmalError
from pmal.rejection.building import default_score


@dataclass(frozen=True)
class Places:
    """Where cells are computed and where their records go."""

    out: Path
    work: Path
    keep: bool = False

    @property
    def ledger(self) -> Ledger:
        """Ledger of the records."""
        return Ledger(self.out)

    def folder(self, cell: Cell) -> Path:
        """Return the folder in which a cell is computed."""
        return self.work / "cells" / cell.name

    def store(self, device: torch.device) -> ClassifierStore:
        """Return the store of classifiers that cells on this device share."""
        return ClassifierStore(self.work / "classifiers", device.type)


def run_cell(
    planned: Planned, places: Places, session: Session, beside: Callable[[], int] = lambda: 0
) -> dict[str, Any]:
    """Compute a cell, write its record and return it.

    Args:
        planned: the cell and how it was asked for.
        places: folders to work in.
        session: device, memory and display.
        beside: called at the end; returns how many other cells ran at the same time.
    """
    cell = planned.cell
    config, folder = cell.config(), places.folder(cell)
    run, notes = make_folder(folder) / "run", folder / "notes.jsonl"
    store = places.store(session.device)

    def keep_classifiers() -> None:
        store.keep(config, run, _trainings(cell, config, run, notes))

    start = time.monotonic()
    if session.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(session.device)
    try:
        store.give(config, run)
        watched = replace(session, display=Watched(session.display, notes, keep_classifiers))
        metrics = _measured(cell)(config, run, watched)
        keep_classifiers()
    finally:
        note(notes, attempt=time.monotonic() - start)
    record = _record(cell, config, metrics, folder, session)
    record |= {"command": planned.command, "grid": planned.grid, "beside": beside()}
    places.ledger.write(cell, record | _shared(cell, config, store, "images_per_s_median" in record))
    if not places.keep:
        shutil.rmtree(folder)
    return record


def _measured(cell: Cell) -> Callable[[RunConfig, Path, Session], dict[str, Any]]:
    others = {FLUCTUATION: measure_fluctuation, ENSEMBLE: measure_ensemble}
    return others.get(cell.measure, pipeline.fit)


def count_training_images(cell: Cell, data_root: str | None) -> int | None:
    """Return the number of training images per epoch of a cell. None: the data are not here."""
    try:
        return len(open_task(cell.config().data, data_root).train)
    except PmalError:
        return None


def _record(
    cell: Cell, config: RunConfig, metrics: dict[str, Any], folder: Path, session: Session
) -> dict[str, Any]:
    """Return the figures and costs of a run, without those of trainings that it shares with others."""
    notes = read_events(folder / "notes.jsonl")
    attempts = [words["attempt"] for words in notes if "attempt" in words]
    manifest = read_json(folder / "run" / "manifest.json") if cell.measure == FIT else {}
    cuda = session.device.type == "cuda"
    return {
        "cell": cell.about(),
        **metrics,
        "score": default_score(config),
        "passes": cell_passes(cell, metrics["about"]["known_classes"]),
        "recipe": cell.recipe,
        "settings": list(cell.settings),
        "seconds": sum(attempts),
        "attempts": len(attempts),
        "stages": stage_seconds(notes),
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(session.device) if cuda else None,
        "peak_process_bytes": _peak_process_bytes(),
        **({"manifest": {k: v for k, v in manifest.items() if k != "sha256"}} if manifest else {}),
        **_speed(folder / "run"),
    }


def _speed(run: Path) -> dict[str, Any]:
    return _median_speed([e["images_per_s"] for e in read_events(run / "log.jsonl") if "epoch" in e])


def _median_speed(speeds: Sequence[float]) -> dict[str, float]:
    return {"images_per_s_median": statistics.median(speeds)} if speeds else {}


def _shared(cell: Cell, config: RunConfig, store: ClassifierStore, trained: bool) -> dict[str, Any]:
    """Return the trainings that other cells did for this one, and their speed if it did none itself."""
    found = {key[1]: store.about(key) for key in classifier_keys(config, store.device)}
    others = {str(index): about for index, about in found.items() if about.get("made_by") != cell.name}
    speeds = [about["images_per_s_median"] for about in others.values() if "images_per_s_median" in about]
    return {"shared_classifiers": others} | ({} if trained else _median_speed(speeds))


def _trainings(cell: Cell, config: RunConfig, run: Path, notes: Path) -> dict[int, dict[str, Any]]:
    """Return how the classifiers of this run were trained, by index."""
    seconds, log = _classifier_seconds(stage_seconds(read_events(notes))), read_events(run / "log.jsonl")
    found = {}
    for index in range(config.classifiers):
        name = f"classifier {index}"
        speeds = [event["images_per_s"] for event in log if event.get("stage") == name and "epoch" in event]
        found[index] = {"made_by": cell.name, "seconds": seconds.get(index, 0.0)} | _median_speed(speeds)
    return found


def _classifier_seconds(stages: Mapping[str, float]) -> dict[int, float]:
    """Return the seconds of each classifier, by index. Parallel trainings share their time equally.

    >>> _classifier_seconds({"classifiers 0, 1": 8.0, "classifier 2": 5.0, "mining": 3.0})
    {0: 4.0, 1: 4.0, 2: 5.0}
    """
    found: dict[int, float] = {}
    for name, seconds in stages.items():
        indices = re.findall(r"\d+", name) if re.fullmatch(r"classifiers? [\d, ]+", name) else []
        for index in map(int, indices):
            found[index] = found.get(index, 0.0) + seconds / len(indices)
    return found


def _peak_process_bytes() -> int:
    """Return the peak memory of this process, which may have computed other cells before."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
