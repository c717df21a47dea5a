"""Is a data set what it should be? All that is wrong with it, found in one pass, most serious first.

Every image is looked at once and none is kept: of each, a digest and a thumbnail of 16 x 16 pixels stay.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.progress import Display
from pmal.data.inspection.check_rows import NOT_A_NUMBER, look_at_rows, row_problems
from pmal.data.inspection.duplicates import find_duplicates
from pmal.data.inspection.fit_checks import has_published_split, refusals
from pmal.data.inspection.images import PartLooks, Seen, look_at_part
from pmal.data.inspection.problems import Item, Problem, class_counts, find_problems
from pmal.data.samples import Source, VectorStore

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
    """Return all that was found in a source, as plain JSON. `words.describe_check` puts it into words."""
    given = {"train": source.train, "test": source.test, "foreign": source.foreign}
    there = [(name, part) for name, part in given.items() if part is not None]
    seen: Sequence[Seen]
    if isinstance(source.train.store, VectorStore):
        seen = [look_at_rows(name, part) for name, part in there]
        problems = row_problems(seen)
    else:
        seen = looks = [look_at_part(name, part, display) for name, part in there]
        problems = [*find_problems(looks), *find_duplicates(looks)]
    refused: list[Item] = [{"reason": reason} for reason in refusals(source, seen)]
    problems += [
        Problem("refused", "error", "reasons for which `pmal fit` rejects the data", "fix them", refused),
        _files("loose", source.loose, "files lie in no class folder", "left out"),
        _files("ignored", source.ignored, "files of the desktop", "ignored"),
    ]
    if has_published_split(source):  # then `refusals` say whether a class is missed
        problems = [replace(p, level="warning") if p.kind == "empty" else p for p in problems]
    found = sorted((p for p in problems if p.items), key=lambda problem: SERIOUS.index(problem.kind))
    return {
        "source": source.name,
        "usable": not any(problem.level == "error" for problem in found),
        "parts": {part.part: _part_result(part) for part in seen},
        "problems": [{**asdict(problem), "count": len(problem.items)} for problem in found],
    }


def _files(kind: str, names: tuple[str, ...], title: str, advice: str) -> Problem:
    return Problem(kind, "note", title, advice, [{"name": name} for name in names])


def _part_result(part: Seen) -> dict[str, Any]:
    counts = {"total": len(part.samples), "readable": int(part.readable.sum())}
    if not isinstance(part, PartLooks):
        assert isinstance(part.samples.store, VectorStore)
        width = part.samples.store.vectors.shape[1]
        return {**counts, "width": width, "per_class": class_counts(part)}
    sides, channels = part.sides[part.readable], part.channels[part.readable]
    sizes = Counter(f"{w}x{h}x{c}" for (w, h), c in zip(sides.tolist(), channels.tolist(), strict=True))
    return {
        **counts,
        "per_class": class_counts(part),
        "sizes": dict(sizes.most_common()),
        "shorter_side": _spread(sides.min(axis=1)),
        "longer_side": _spread(sides.max(axis=1)),
        "kinds": dict(Counter(part.kinds[part.readable].tolist()).most_common()),
        "turned": int(part.turned.sum()),
    }


def _spread(values: NDArray[np.int32]) -> dict[str, float] | None:
    """Return least, median and most; None for no values."""
    if not len(values):
        return None
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}
