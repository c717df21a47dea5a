"""Is a data set what it should be? Counts, sizes, unreadable images, equal images where none should be.

Equal images in different classes are wrong labels; equal images in training and test make figures too good.
They are found by digests, 32 bytes an image, over all parts together.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.progress import Display
from pmal._runtime.text import printable
from pmal.data.samples import BadImage, Ids, Samples, Source

LISTED = 20
_CHUNK = 64
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class _Scan:
    """A part after every image was read: `digests[i]` is that of the image at `positions[i]`."""

    part: str
    samples: Samples
    positions: Ids
    digests: NDArray[np.uint8]
    sizes: Counter[str]
    unreadable: list[tuple[int, str]]


@dataclass(frozen=True)
class _Image:
    """One of several equal images."""

    part: str
    name: str
    class_name: str
    label: tuple[bool, int]
    """Images of another set are unknown: their classes are none of the training part's, whatever the name."""


def check_source(source: Source, display: Display) -> dict[str, Any]:
    """Read every image once. The result is plain JSON."""
    parts = {"train": source.train, "test": source.test, "foreign": source.foreign}
    scans = [_scan(name, part, display) for name, part in parts.items() if part is not None]
    groups = _equal_images(scans)
    return {
        "source": source.name,
        "parts": {scan.part: _part_result(scan, groups) for scan in scans},
        "conflicts_across": [_placed(g) for g in groups if _in_several_parts(g) and _in_several_classes(g)],
        "loose": list(source.loose),
        "shared_across": [_placed(same) for g in groups for same in _by_class(g) if _in_several_parts(same)],
    }


def describe_check(found: dict[str, Any]) -> str:
    """The result for people."""
    lines = [f"{printable(found['source'])}:"]
    for name, part in found["parts"].items():
        counts = list(part["per_class"].values())
        sizes = ", ".join(f"{size} ({count:,})" for size, count in list(part["sizes"].items())[:4])
        more = len(part["sizes"]) - 4
        lines += [
            f"  {name}: {part['total']:,} images, {len(counts)} classes",
            f"    images per class: {min(counts):,} to {max(counts):,}",
            f"    sizes: {sizes}" + (f" and {more} more" if more > 0 else ""),
            f"    unreadable: {len(part['unreadable']):,}",
            *(f"      {_bad_line(bad)}" for bad in part["unreadable"][:LISTED]),
            *_group_lines("equal images in different classes", part["conflicts"]),
        ]
    if found["loose"]:
        lines.append(f"  in no class folder, and left out: {len(found['loose']):,}")
        lines += [f"    {printable(name)}" for name in found["loose"][:LISTED]]
    if len(found["parts"]) > 1:
        lines += [
            "  across parts:",
            *_group_lines("equal images in different classes", found["conflicts_across"]),
            *_group_lines("equal images of one class in several parts", found["shared_across"]),
        ]
    return "\n".join(lines)


def _scan(part: str, samples: Samples, display: Display) -> _Scan:
    digests = np.zeros((len(samples), _DIGEST_BYTES), np.uint8)
    readable = np.ones(len(samples), np.bool_)
    sizes: Counter[str] = Counter()
    unreadable = []

    def look(start: int) -> list[tuple[int, str, bytes, str]]:
        return [_look(samples, i) for i in range(start, min(start + _CHUNK, len(samples)))]

    with display.stage(f"checking {part}", len(samples), "images") as advance, ThreadPoolExecutor() as pool:
        for seen in pool.map(look, range(0, len(samples), _CHUNK)):
            advance(len(seen))
            for position, size, digest, reason in seen:
                if reason:
                    readable[position] = False
                    unreadable.append((position, reason))
                else:
                    sizes[size] += 1
                    digests[position] = np.frombuffer(digest, np.uint8)
    return _Scan(part, samples, np.flatnonzero(readable), digests[readable], sizes, unreadable)


def _look(samples: Samples, position: int) -> tuple[int, str, bytes, str]:
    try:
        pixels = samples.read(position)
    except BadImage as error:
        return position, "", b"", str(error)
    height, width, channels = pixels.shape
    shape = f"{width}x{height}x{channels}"
    return position, shape, hashlib.sha256(shape.encode() + pixels.tobytes()).digest(), ""


def _equal_images(scans: list[_Scan]) -> list[list[_Image]]:
    """Every image that occurs twice or more in all parts together, with all its occurrences."""
    digests = np.concatenate([scan.digests for scan in scans]).view(f"V{_DIGEST_BYTES}").ravel()
    _, which, times = np.unique(digests, return_inverse=True, return_counts=True)
    starts = np.cumsum([0, *(len(scan.digests) for scan in scans)])
    groups: defaultdict[int, list[_Image]] = defaultdict(list)
    for row in np.flatnonzero(times[which] > 1).tolist():
        number = int(np.searchsorted(starts, row, "right")) - 1
        groups[int(which[row])].append(_image(scans[number], row - int(starts[number])))
    return list(groups.values())


def _image(scan: _Scan, index: int) -> _Image:
    position = int(scan.positions[index])
    label = int(scan.samples.labels[position])
    name, class_name = scan.samples.name(position), scan.samples.class_names[label]
    return _Image(scan.part, name, class_name, (scan.part == "foreign", label))


def _part_result(scan: _Scan, groups: list[list[_Image]]) -> dict[str, Any]:
    samples = scan.samples
    per_class = dict.fromkeys(samples.class_names, 0)
    for label, count in Counter(samples.labels.tolist()).items():
        per_class[samples.class_names[label]] += count
    here = [[image for image in group if image.part == scan.part] for group in groups]
    return {
        "total": len(samples),
        "per_class": per_class,
        "sizes": dict(scan.sizes.most_common()),
        "unreadable": [
            {"id": int(samples.ids[position]), "name": samples.name(position), "reason": reason}
            for position, reason in scan.unreadable
        ],
        "conflicts": [_listed(group) for group in here if _in_several_classes(group)],
    }


def _in_several_parts(group: Sequence[_Image]) -> bool:
    return len({image.part for image in group}) > 1


def _in_several_classes(group: Sequence[_Image]) -> bool:
    return len({image.label for image in group}) > 1


def _by_class(group: Sequence[_Image]) -> list[list[_Image]]:
    classes: defaultdict[tuple[bool, int], list[_Image]] = defaultdict(list)
    for image in group:
        classes[image.label].append(image)
    return list(classes.values())


def _listed(group: Sequence[_Image]) -> list[dict[str, str]]:
    return [{"name": image.name, "class": image.class_name} for image in group]


def _placed(group: Sequence[_Image]) -> list[dict[str, str]]:
    return [{"part": image.part, **entry} for image, entry in zip(group, _listed(group), strict=True)]


def _bad_line(bad: dict[str, Any]) -> str:
    return printable(f"{bad['name']}: {bad['reason']}")


def _group_lines(title: str, groups: list[list[dict[str, str]]]) -> list[str]:
    return [f"    {title}: {len(groups):,}", *(f"      {_group_line(group)}" for group in groups[:LISTED])]


def _group_line(group: list[dict[str, str]]) -> str:
    places = [f"{image['part']} " if "part" in image else "" for image in group]
    shown = [f"{where}{image['name']} ({image['class']})" for where, image in zip(places, group, strict=True)]
    more = f" and {len(group) - 4} more" if len(group) > 4 else ""
    return printable(" = ".join(shown[:4])) + more
