"""What can be wrong with a data set, most serious first. Each finder is a function of what was seen."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from pmal.data.feeding.parts import FEW_IMAGES
from pmal.data.inspection.images import Mask, PartLooks, Seen
from pmal.data.sources.folder import FileStore

TINY = 16
"""Pixels of the shorter side; an image below has little to learn from."""
EXTREME = 8
"""Largest ratio of the longer side to the shorter one. Of a longer image, most is cropped away."""
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".heic", ".heif", ".avif"),
)
Item = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One kind of trouble with all its cases."""

    kind: str
    level: str
    """error: `pmal fit` rejects the data; warning: it makes the result worse; note: good to know."""
    title: str
    """What it is, after the number of cases: "images cannot be read"."""
    advice: str
    items: list[Item]


def find_problems(parts: Sequence[PartLooks]) -> list[Problem]:
    """Return what is wrong with classes and single images."""
    return [problem for find in FINDERS if (problem := find(parts)).items]


def class_counts(part: Seen) -> dict[str, int]:
    """Return the samples of each class; classes of the same name are counted together."""
    counts = dict.fromkeys(part.samples.class_names, 0)
    per_label = np.bincount(part.samples.labels, minlength=len(part.samples.class_names))
    for name, count in zip(part.samples.class_names, per_label.tolist(), strict=True):
        counts[name] += count
    return counts


def describe_image(part: Seen, position: int) -> Item:
    """Return where a sample is."""
    samples = part.samples
    label = int(samples.labels[position])
    return {"part": part.part, "name": samples.name(position), "class": samples.class_names[label]}


def _empty(parts: Sequence[PartLooks]) -> Problem:
    empty = [name for name, count in class_counts(parts[0]).items() if not count]
    items = [{"class": name, "images": 0} for name in empty]
    return Problem("empty", "error", "classes have no images", "add images or remove the class", items)


def _unreadable(parts: Sequence[PartLooks]) -> Problem:
    items = [
        {"id": int(part.samples.ids[position]), **describe_image(part, position), "reason": reason}
        for part in parts
        for position, reason in part.unread.items()
        if not _is_no_image(part, position)
    ]
    advice = "repair or remove; `pmal fit` leaves out what it cannot read"
    return Problem("unreadable", "warning", "images cannot be read", advice, items)


def _few(parts: Sequence[PartLooks]) -> Problem:
    samples, readable = parts[0].samples, parts[0].readable
    counts = np.bincount(samples.labels[readable], minlength=len(samples.class_names))
    items = [
        {"class": samples.class_names[label], "images": int(counts[label])}
        for label in np.argsort(counts, kind="stable").tolist()
        if counts[label] < FEW_IMAGES and (samples.labels == label).any()
    ]
    advice = f"add images, {FEW_IMAGES} or more; `pmal fit` needs 1 of each class and 5 in all"
    return Problem("few", "warning", f"classes have fewer than {FEW_IMAGES} readable images", advice, items)


def _where(
    kind: str, title: str, advice: str, test: Callable[[PartLooks], Mask]
) -> Callable[[Sequence[PartLooks]], Problem]:
    """Return a finder of the readable images under a mask, with their sizes."""

    def find(parts: Sequence[PartLooks]) -> Problem:
        items = [item for part in parts for item in _sized(part, part.readable & test(part))]
        return Problem(kind, "warning", title, advice, items)

    return find


def _sized(part: PartLooks, mask: Mask) -> Iterator[Item]:
    for position in np.flatnonzero(mask).tolist():
        width, height = part.sides[position].tolist()
        yield {**describe_image(part, position), "reason": f"{width} x {height} px"}


def _no_images(parts: Sequence[PartLooks]) -> Problem:
    items = [
        describe_image(part, position)
        for part in parts
        for position in part.unread
        if _is_no_image(part, position)
    ]
    advice = "remove; `pmal fit` counts such files as unreadable"
    return Problem("no image", "note", "files in class folders are no images", advice, items)


def _turned(parts: Sequence[PartLooks]) -> Problem:
    items = [
        describe_image(part, position) for part in parts for position in np.flatnonzero(part.turned).tolist()
    ]
    return Problem("turned", "note", "images are turned by their EXIF data", "it is applied", items)


def _is_no_image(part: PartLooks, position: int) -> bool:
    """Return whether a file is no image. A text is none; a text that is called .jpg is a broken one."""
    suffix = PurePath(part.samples.name(position)).suffix.lower()
    no_image = bool(part.no_image[position]) and isinstance(part.samples.store, FileStore)
    return no_image and suffix not in IMAGE_SUFFIXES


FINDERS: tuple[Callable[[Sequence[PartLooks]], Problem], ...] = (
    _empty,
    _unreadable,
    _few,
    _where(
        "constant",
        "images have a single color",
        "nothing is in there to learn",
        lambda part: part.constant,
    ),
    _where(
        "tiny",
        f"images have a side below {TINY} px",
        "larger ones have more to learn from",
        lambda part: part.sides.min(axis=1) < TINY,
    ),
    _where(
        "extreme",
        f"images are more than {EXTREME} times as long as wide",
        "all but a square in the center is cut off",
        lambda part: part.sides.max(axis=1) > EXTREME * part.sides.min(axis=1),
    ),
    _no_images,
    _turned,
)
