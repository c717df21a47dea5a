"""The result of mining: which samples represent each class, why, and how it is saved and loaded.

P prototypes, K classes, T prototypes of the class that has most.
"""

from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.files import read_json
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.errors import DataError

_FORMAT = "pmal-prototypes-1"
_DTYPES = {
    "ids": torch.int64,
    "labels": torch.int64,
    "log_r": torch.float64,
    "gap": torch.float64,
    "rank": torch.int64,
}


@dataclass(frozen=True, eq=False)
class PrototypeSet:
    """Prototypes ordered by class, then by rank. A class without samples has none.

    >>> ids, labels, zeros = torch.tensor([7, 3, 5]), torch.tensor([0, 0, 2]), torch.zeros(3).double()
    >>> mined = PrototypeSet(ids, labels, zeros, zeros, rank=torch.tensor([0, 1, 0]), num_classes=3)
    >>> mined.table().tolist()
    [[7, 3], [-1, -1], [5, -1]]
    """

    ids: Tensor
    """Sample ids (P,)."""
    labels: Tensor
    """Class of each prototype (P,)."""
    log_r: Tensor
    """Log of its quality (P,): the robustness r, or the result of another quality rule."""
    gap: Tensor
    """Distance to the nearest better candidate of its class (P,); for the best one, the largest distance."""
    rank: Tensor
    """0 for the first choice of its class, 1 for the second, ... (P,)."""
    num_classes: int
    class_names: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None
    """Path of each prototype's image, to show to the user."""

    def __post_init__(self) -> None:
        _check_columns(self)
        _check_order(self)
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise DataError(f"prototypes: {len(self.class_names)} class names for {self.num_classes} classes")
        if self.files is not None and len(self.files) != len(self):
            raise DataError(f"prototypes: {len(self.files)} file names for {len(self)} prototypes")

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrototypeSet):
            return NotImplemented
        columns = all(torch.equal(getattr(self, name), getattr(other, name)) for name in _DTYPES)
        rest = [field.name for field in fields(self) if field.name not in _DTYPES]
        return columns and all(getattr(self, name) == getattr(other, name) for name in rest)

    @property
    def r(self) -> Tensor:
        """Quality of each prototype, from 0 to 1 (P,)."""
        return self.log_r.exp()

    @property
    def per_class(self) -> int:
        """T: the number of prototypes of the class with most of them."""
        return int(self.rank.max()) + 1 if len(self) else 0

    @property
    def mask(self) -> Tensor:
        """Which entries of `table()` are prototypes, bool (K, T): classes with fewer than T have gaps."""
        return self.table() >= 0

    def table(self) -> Tensor:
        """Return the sample ids by class and rank, (K, T); -1 marks gaps of classes with fewer than T."""
        table_KT = self.ids.new_full((self.num_classes, self.per_class), -1)
        table_KT[self.labels, self.rank] = self.ids
        return table_KT

    def entries(self) -> list[dict[str, Any]]:
        """Return one record per prototype, as in the JSON file."""
        names = self.class_names or range(self.num_classes)
        records: list[dict[str, Any]] = [
            {"id": i, "class": names[label], "r": r, "gap": gap, "rank": rank}
            for i, label, r, gap, rank in zip(
                *(column.tolist() for column in (self.ids, self.labels, self.r, self.gap, self.rank)),
                strict=True,
            )
        ]
        for record, file in zip(records, self.files or (), strict=False):
            record["file"] = file
        return records

    def save(self, path: str | PathLike[str], ranks: Ranks = ALONE) -> None:
        """Write PATH.json (readable, with the file names) and PATH.safetensors (the exact numbers).

        An older set of prototypes is replaced.

        Args:
            path: where to write, with or without .json.
            ranks: the processes of a run; the first one writes.

        Raises:
            DataError: another file of that name exists.
        """
        stem = _stem(path)
        ranks.by_first(lambda: _check_replaceable(stem))
        about = {
            "format": _FORMAT,
            "num_classes": self.num_classes,
            "class_names": self.class_names,
            "prototypes": self.entries(),
        }
        save_tensors(stem, {name: getattr(self, name) for name in _DTYPES}, about, ranks)

    @classmethod
    def load(cls, path: str | PathLike[str], ranks: Ranks = ALONE) -> "PrototypeSet":
        """Return the prototypes that `save` wrote.

        Raises:
            DataError: the file is damaged, edited or not a set of prototypes.
        """
        stem = _stem(path)
        tensors, about = load_tensors(stem, ranks)
        if not _is_ours({"tensors": tensors, "about": about}) or set(tensors) != set(_DTYPES):
            raise DataError(f"{stem}.json: not a set of prototypes: mine again, or name another file")
        try:
            names = about["class_names"]
            files = [record["file"] for record in about["prototypes"] if "file" in record]
            found = cls(
                **tensors,
                num_classes=about["num_classes"],
                class_names=None if names is None else tuple(names),
                files=tuple(files) or None,
            )
        except (DataError, KeyError, TypeError) as error:
            raise DataError(f"{stem}.json: damaged ({error}): mine again") from None
        if _without_r(found.entries()) != _without_r(about["prototypes"]):
            raise DataError(f"{stem}.json: its list differs from {stem.name}.safetensors: mine again")
        return found


def _stem(path: str | PathLike[str]) -> Path:
    given = Path(path)
    return given.with_suffix("") if given.suffix == ".json" else given


def _check_replaceable(stem: Path) -> None:
    if has_tensors(stem) and not _is_ours(read_json(stem.with_name(f"{stem.name}.json"))):
        raise DataError(f"{stem}.json: exists and is not a set of prototypes: choose another name")


def _is_ours(content: Any) -> bool:
    """Return whether a JSON file next to a tensor file was written by `save`."""
    about = content.get("about") if isinstance(content, dict) and "tensors" in content else None
    return isinstance(about, dict) and about.get("format") == _FORMAT


def _without_r(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # exp may round differently on another machine; the exact number, log r, is in the tensor file.
    return [{key: value for key, value in record.items() if key != "r"} for record in records]


def _check_columns(found: PrototypeSet) -> None:
    for name, dtype in _DTYPES.items():
        column = getattr(found, name)
        if column.dtype != dtype or column.shape != found.ids.shape or column.ndim != 1:
            raise DataError(f"prototypes: {name} is {column.dtype} of shape {tuple(column.shape)}")
    if found.log_r.isnan().any() or not found.gap.isfinite().all():
        raise DataError("prototypes: NaN among r, or a gap that is not finite")


def _check_order(found: PrototypeSet) -> None:
    previous = torch.cat([torch.tensor([-1]), found.labels[:-1]])
    same = found.labels == previous
    follows = torch.cat([torch.tensor([-1]), found.rank[:-1]]) + 1
    inside = bool(((found.labels >= 0) & (found.labels < found.num_classes)).all())
    if not inside or (found.labels < previous).any() or (found.rank != follows.where(same, 0)).any():
        raise DataError("prototypes: not in the order of class and rank, or of a class that does not exist")
    if len(set(found.ids.tolist())) < len(found) or (found.ids < 0).any():
        raise DataError("prototypes: an id is negative or occurs more than once")
