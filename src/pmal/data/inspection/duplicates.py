"""The same picture more than once, exactly or nearly, and what that means.

In two classes, one of the labels is wrong. In training and test, the figures are too good. Within a class,
the same may happen as soon as a share of the images is held out.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from pmal.data.inspection.images import PartLooks, Seen
from pmal.data.inspection.near_duplicates import LEAST_CORRELATION, SMALL, SMALL_CORRELATION, near_pairs
from pmal.data.inspection.problems import Item, Problem, describe_image
from pmal.data.samples import Ids

Place = tuple[int, int]
"""Number of the part, position in it."""
Group = tuple[list[Place], Item]
"""Images that are alike, and what is known of their likeness."""
ADVICE = {
    "conflict": "keep one in the class that it belongs to, remove the others",
    "leak": "remove them from one part: they make the figures too good",
    "copy": "keep one of each: copies in training and test make the figures too good",
}
TITLES = {
    "conflict": "in different classes",
    "leak": "in several parts",
    "copy": "within a class",
}


def find_duplicates(parts: Sequence[PartLooks]) -> list[Problem]:
    """Return the groups of equal images and the pairs of near-duplicates, by what they mean."""
    places = _readable(parts)
    if not places:
        return []
    equal, first = _equal(parts, places)
    near = _near(parts, [places[row] for row in first.tolist()])
    return [
        *_by_meaning("equal", "groups of equal images", equal, parts),
        *_by_meaning("near", "pairs of near-duplicates", near, parts),
    ]


def find_equal(parts: Sequence[Seen], words: str) -> list[Problem]:
    """Return the groups of equal samples, by what they mean. words: what such groups are called."""
    places = _readable(parts)
    return list(_by_meaning("equal", words, _equal(parts, places)[0], parts)) if places else []


def _readable(parts: Sequence[Seen]) -> list[Place]:
    return [(n, i) for n, part in enumerate(parts) for i in np.flatnonzero(part.readable).tolist()]


def _by_meaning(kind: str, words: str, groups: list[Group], parts: Sequence[Seen]) -> Iterator[Problem]:
    for meaning, title in TITLES.items():
        items = [
            {"images": [describe_image(parts[n], i) for n, i in group], **extra}
            for group, extra in groups
            if _meaning(parts, group) == meaning
        ]
        if items:
            yield Problem(f"{kind} {meaning}", "warning", f"{words} {title}", ADVICE[meaning], items)


def _equal(parts: Sequence[Seen], places: list[Place]) -> tuple[list[Group], Ids]:
    """Return the groups, and the row of the first of every different image."""
    rows = np.concatenate([part.digests[part.readable] for part in parts])
    digests = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel()
    _, first, which, times = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
    groups: defaultdict[int, list[Place]] = defaultdict(list)
    for row in np.flatnonzero(times[which] > 1).tolist():
        groups[int(which[row])].append(places[row])
    return [(group, {}) for group in groups.values()], np.sort(first)


def _near(parts: Sequence[PartLooks], places: list[Place]) -> list[Group]:
    """Return pairs among different images, the most alike first."""
    number, position = np.array(places).T
    masks = [position[number == n] for n in range(len(parts))]
    thumbnails = np.concatenate([part.thumbnails[rows] for part, rows in zip(parts, masks, strict=True)])
    sides = np.concatenate([part.sides[rows] for part, rows in zip(parts, masks, strict=True)])
    least = np.where(sides.min(axis=1) < SMALL, SMALL_CORRELATION, LEAST_CORRELATION)
    pairs, bits = near_pairs(thumbnails, least)
    return [
        ([places[i], places[j]], {"bits": distance})
        for (i, j), distance in zip(pairs.tolist(), bits.tolist(), strict=True)
    ]


def _meaning(parts: Sequence[Seen], group: Sequence[Place]) -> str:
    """Return what a group means.

    Images of another set are unknown: its classes are not those of the training part.
    """
    labels = {(parts[n].part == "foreign", int(parts[n].samples.labels[i])) for n, i in group}
    if len(labels) > 1:
        return "conflict"
    return "leak" if len({n for n, _ in group}) > 1 else "copy"
