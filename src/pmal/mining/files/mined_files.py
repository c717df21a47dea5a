"""Mining results for other programs: prototypes as JSON and CSV, and r of every sample as CSV.

Text that begins like a formula (= + - @, tab or carriage return) gets a leading ' in the CSV files, so that a
spreadsheet shows it and does not run it. Numbers, and text in the JSON file, are unchanged.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from torch import Tensor

from pmal._runtime.files import atomic_path, make_folder
from pmal._runtime.text import plain_cell
from pmal.errors import DataError, UsageError
from pmal.mining.prototypes import PrototypeSet

PROTOTYPE_COLUMNS = ("class", "rank", "id", "r", "gap", "path")
SAMPLE_COLUMNS = ("id", "class", "r", "log_r", "candidate", "rank", "path")


@dataclass(frozen=True)
class OutputFiles:
    """The files that belong to one name: OUT, or OUT.json, or OUT.csv."""

    stem: Path

    @classmethod
    def named(cls, out: str | PathLike[str]) -> "OutputFiles":
        """Return the files of an --out option.

        Raises:
            UsageError: it is a folder.
        """
        path = Path(out)
        if path.is_dir():
            raise UsageError(f"{out} is a folder: name a file in it")
        return cls(path.with_suffix("") if path.suffix in (".json", ".csv") else path)

    @property
    def readable(self) -> tuple[Path, Path, Path]:
        """The prototypes for `PrototypeSet.load`, the list of them, and the list of all samples."""
        return self._with(".json"), self._with(".csv"), self._with(".samples.csv")

    def prepare(self, source: Path, force: bool) -> None:
        """Check, before any work, that the files can be written and that nothing is lost by it.

        Raises:
            UsageError: a file is in the way; the source always is, older prototypes unless `force` is set.
        """
        every = [*self.readable, self._with(".safetensors"), self._with(".next.safetensors")]
        make_folder(self.stem.parent)
        there = [file for file in every if file.exists()]
        if source.exists() and any(file.samefile(source) for file in there):
            raise UsageError(f"{source}: would be overwritten by its own prototypes: choose another --out")
        if there and not force:
            raise UsageError(f"{there[0]} exists: choose another --out, or pass --force to replace it")
        if self._with(".json").exists():
            _check_is_ours(self._with(".json"))

    def _with(self, ending: str) -> Path:
        return self.stem.with_name(self.stem.name + ending)


def write_prototypes_csv(path: Path, prototypes: PrototypeSet) -> None:
    """Write one line per prototype, by class and rank; rank 0 is the first choice."""
    rows = (
        (
            plain_cell(entry["class"]),
            *(entry[name] for name in ("rank", "id", "r", "gap")),
            plain_cell(entry.get("file", "")),
        )
        for entry in prototypes.entries()
    )
    _write_csv(path, PROTOTYPE_COLUMNS, rows)


def write_samples_csv(
    path: Path,
    log_r: Tensor,
    candidates: Tensor,
    labels: Tensor,
    ids: Tensor,
    prototypes: PrototypeSet,
    files: Sequence[str] | None,
) -> None:
    """Write one line per sample: r, whether it is a candidate (0 or 1), and its rank if it is a prototype."""
    names = [plain_cell(name) for name in prototypes.class_names or range(prototypes.num_classes)]
    rank_of = dict(zip(prototypes.ids.tolist(), prototypes.rank.tolist(), strict=True))
    columns = (ids, labels, log_r.exp(), log_r, candidates.int())
    rows = (
        (i, names[label], r, log_r_i, candidate, rank_of.get(i, ""), plain_cell(files[n]) if files else "")
        for n, (i, label, r, log_r_i, candidate) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    )
    _write_csv(path, SAMPLE_COLUMNS, rows)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _check_is_ours(path: Path) -> None:
    try:
        PrototypeSet.load(path)
    except DataError:
        raise UsageError(
            f"{path} exists and is not a whole set of prototypes: move it away, or choose another --out"
        ) from None
