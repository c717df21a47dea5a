"""Is a data set what it should be? All that is wrong with it, found in one pass, most serious first.

Every image is looked at once and none is kept: of each, a digest and a thumbnail of 16 x 16 pixels stay.
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.progress import Display
from pmal.data.inspection.check_rows import NOT_A_NUMBER, row_problems
from pmal.data.inspection.duplicates import find_duplicates
from pmal.data.inspection.fit_checks import has_published_split, refusals, row_refusals
from pmal.data.inspection.images import PartLooks, look_at_part
from pmal.data.inspection.problems import Item, Problem, class_counts, find_problems
from pmal.data.inspection.words import describe_check
from pmal.data.samples import Source, VectorStore

__all__ = ["check_images", "check_source", "checked", "describe_check"]
SERIOUS = (
    "refused",
    NOT_A_NUMBER,
    "empty",
    "unreadable",
    "equal conflict",
    "near conflict",
    "equal leak",
    "near leak",
    "few",
    "constant",
    "zero",
    "tiny",
    "extreme",
    "equal copy",
    "near copy",
    "no image",
    "loose",
    "ignored",
    "turned",
)
"""The kinds of problems, most serious first."""


def check_source(source: Source, display: Display) -> dict[str, Any]:
    """Return all that was found in a source, as plain JSON. `describe_check` puts it into words."""
    if isinstance(source.train.store, VectorStore):
        counts, problems = row_problems(source)
        return checked(source.name, counts, [_refused(row_refusals(source)), *problems])
    return check_images(source, display)


def check_images(source: Source, display: Display) -> dict[str, Any]:
    """Read every image once, and return the counts of each part and all problems."""
    given = {"train": source.train, "test": source.test, "foreign": source.foreign}
    parts = [look_at_part(name, part, display) for name, part in given.items() if part is not None]
    problems = [
        _refused(refusals(source, parts)),
        *find_problems(parts),
        *find_duplicates(parts),
        _files("loose", source.loose, "files lie in no class folder", "left out"),
        _files("ignored", source.ignored, "files of the desktop", "ignored"),
    ]
    if has_published_split(source):  # then `refusals` say whether a class is missed
        problems = [replace(p, level="warning") if p.kind == "empty" else p for p in problems]
    return checked(source.name, {part.part: _part_result(part) for part in parts}, problems)


def checked(name: str, parts: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the result of a check: whether the source is usable, its parts, its problems in their order."""
    found = sorted((p for p in problems if p.items), key=lambda problem: SERIOUS.index(problem.kind))
    return {
        "source": name,
        "usable": not any(problem.level == "error" for problem in found),
        "parts": parts,
        "problems": [{**asdict(problem), "count": len(problem.items)} for problem in found],
    }


def _refused(reasons: list[str]) -> Problem:
    items: list[Item] = [{"reason": reason} for reason in reasons]
    return Problem("refused", "error", "reasons for which `pmal fit` rejects the data", "fix them", items)


def _files(kind: str, names: tuple[str, ...], title: str, advice: str) -> Problem:
    items: list[Item] = [{"name": name} for name in names]
    return Problem(kind, "note", title, advice, items)


def _part_result(part: PartLooks) -> dict[str, Any]:
    return {
        "total": len(part.samples),
        "readable": int(part.readable.sum()),
        "per_class": class_counts(part),
        "sizes": dict(part.shapes.most_common()),
        "shorter_side": _spread(part.sides[part.readable].min(axis=1, initial=1 << 30)),
        "longer_side": _spread(part.sides[part.readable].max(axis=1, initial=0)),
        "kinds": dict(part.kinds.most_common()),
        "turned": len(part.turned),
    }


def _spread(values: NDArray[np.int32]) -> dict[str, float] | None:
    """Return least, median and most; None for no values."""
    if not len(values):
        return None
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}
