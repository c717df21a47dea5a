"""Are embeddings what they should be? Rows that are not finite, zero or equal to another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal.data.inspection.duplicates import find_equal
from pmal.data.inspection.problems import Item, Problem, class_counts, describe_image
from pmal.data.samples import NOT_FINITE, Samples, Source, VectorStore

NOT_A_NUMBER = "not finite"
"""The kind of problem for which embeddings are refused."""


@dataclass(frozen=True)
class PartRows:
    """The rows of a part."""

    part: str
    samples: Samples

    @property
    def vectors(self) -> NDArray[np.float32]:
        assert isinstance(self.samples.store, VectorStore)
        return self.samples.store.vectors[self.samples.ids]

    @property
    def readable(self) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.vectors).all(axis=1))

    @property
    def zero(self) -> NDArray[np.bool_]:
        return np.asarray(~self.vectors.any(axis=1))

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The bytes of each row; minus zero is zero."""
        return np.ascontiguousarray(self.vectors + np.float32(0)).view(np.uint8)


def row_problems(source: Source) -> tuple[dict[str, Any], list[Problem]]:
    """Return counts of each part, and all that is wrong with its rows."""
    given = {"train": source.train, "test": source.test}
    parts = [PartRows(name, part) for name, part in given.items() if part is not None]
    counts = {part.part: _part_result(part) for part in parts}
    broken = _rows(parts, lambda part: ~part.readable, {"reason": NOT_FINITE})
    zero = _rows(parts, lambda part: part.zero)
    problems = [
        Problem(NOT_A_NUMBER, "warning", f"rows have {NOT_FINITE}", "remove or embed them again", broken),
        Problem("zero", "warning", "rows are zero", "embed them again", zero),
        *find_equal(parts, "groups of equal rows"),
    ]
    return counts, problems


def _part_result(part: PartRows) -> dict[str, Any]:
    return {
        "total": len(part.samples),
        "readable": int(part.readable.sum()),
        "width": part.vectors.shape[1],
        "per_class": class_counts(part),
    }


def _rows(
    parts: list[PartRows], test: Callable[[PartRows], NDArray[np.bool_]], more: Item | None = None
) -> list[Item]:
    return [
        {"id": int(part.samples.ids[place]), **describe_image(part, place), **(more or {})}
        for part in parts
        for place in np.flatnonzero(test(part)).tolist()
    ]
