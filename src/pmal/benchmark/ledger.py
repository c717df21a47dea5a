"""The results, one JSON file per cell. A finished cell is not computed again, and its file never changes."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmal._runtime.files import make_folder, read_json, write_json
from pmal.benchmark.cells.cell import FIT, FLUCTUATION, Cell, cell_of
from pmal.benchmark.cells.passes import cell_passes
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS

Record = Mapping[str, Any]
_MISPLACED = "holds another cell than its name says"
_OF_MININGS = ("minings", "share_equal", "distance_to_nearest", "distance_by_chance")


@dataclass(frozen=True)
class Result:
    """A record of the ledger and the cell that it is about."""

    cell: Cell
    record: Record

    @property
    def score(self) -> str:
        """Score that the method rejects by unless another one is set."""
        if "score" in self.record:
            return str(self.record["score"])
        # Earlier versions did not record it. They had these methods and rules only.
        return "distance" if self.cell.method == "pmal" else METHODS[self.cell.method].score

    @functools.cached_property
    def passes(self) -> float | None:
        """Passes per training image of all trainings. None: an earlier version did not record enough."""
        if "passes" in self.record:
            return float(self.record["passes"])
        try:
            return cell_passes(self.cell, self.record["about"]["known_classes"])
        except (KeyError, UsageError):  # such as a method or recipe that no longer exists
            return None

    @property
    def second_epochs(self) -> int:
        """Epochs of the second training if it has its own number, else 0."""
        return int(self.record.get("about", {}).get("optimization", {}).get("epochs", 0))

    def accuracy(self) -> float:
        """Return the accuracy on known test images."""
        return float(self.record["accuracy"]["value"])

    def auroc(self, score: str) -> float | None:
        """Return the AUROC by a score. None: the run has no such score."""
        row = self.record["scores"].get(score)
        return None if row is None else float(row["auroc"]["value"])


class Ledger:
    """A folder of records, by the names of their cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """Return the file of a cell."""
        return self.folder / f"{cell.name}.json"

    def read(self, cell: Cell) -> Result | None:
        """Return the result of a cell. None: it is not in the ledger.

        Raises:
            DataError: the file is broken, or holds another cell.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        found = read_result(path)
        if found.cell != cell:
            raise DataError(f"{path}: {_MISPLACED}")
        return found

    def write(self, cell: Cell, record: Record) -> Path:
        """Write the record of a cell and return its file."""
        path = self.path(cell)
        make_folder(path.parent)
        write_json(path, record)
        return path

    def results(self, *measures: str) -> tuple[list[Result], list[str]]:
        """Return every readable record of some measures, and a line for every other file.

        Args:
            measures: what was measured. Default: whole runs.
        """
        found, broken = [], []
        # Each measure has its own folders.
        folders: list[str] = []
        for measure in measures or (FIT,):
            folders += sorted(METHODS) if measure == FIT else [measure]
        for path in (path for name in folders for path in sorted(self.folder.glob(f"{name}/*.json"))):
            try:
                result = read_result(path)
            except DataError as error:
                broken.append(str(error))
                continue
            if self.path(result.cell) == path:
                found.append(result)
            else:  # such as a copy, which would be counted twice
                broken.append(f"{path}: {_MISPLACED}")
        return found, broken


def read_result(path: Path) -> Result:
    """Return the result in one file of the ledger.

    Raises:
        DataError: the file is not a record of the benchmark.
    """
    record = read_json(path)
    try:
        cell = cell_of(record)
        numbers = (cell.split, cell.seed, cell.epochs, cell.networks)
        complete = all(isinstance(number, int) for number in numbers)
        complete &= record.get("passes", 1.0) > 0
        if cell.measure == FLUCTUATION:
            complete &= all(name in record for name in _OF_MININGS)
        else:
            for figures in (record, *([record["softmax"]] if "softmax" in record else [])):
                _check_figures(figures)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        complete = False
    if not complete:
        raise DataError(f"{path}: not a record of the benchmark: run its cell again, or delete it")
    return Result(cell, record)


def _check_figures(figures: Record) -> None:
    """Raise an error of any kind if a figure is missing or not a number."""
    float(figures["accuracy"]["value"])
    [row["auroc"]["value"] + 0.0 for row in figures["scores"].values()]
