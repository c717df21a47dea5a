"""The data that the report of a run is made from.

Shapes: N known test images, M unknown ones (known ones first), T training images.
"""

import functools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pmal._runtime.text import printable, short_path
from pmal.data.samples import Samples
from pmal.mining.prototypes import PrototypeSet
from pmal.reporting.page.numbers.run_numbers import Bools, Floats, Ints

CLASSES = 40
"""Largest number of classes that are shown one by one. Of more, evenly spaced ones are shown."""


@dataclass(frozen=True)
class RunFacts:
    """Contents of the run's own files."""

    settings: Mapping[str, Any]
    source: str
    split: str
    class_names: Sequence[str]
    unknown_names: Mapping[int, str]
    """Names by label."""
    images: Mapping[str, int]
    """Numbers of readable images, by part."""
    metrics: Mapping[str, Any] | None
    manifest: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.settings["method"])


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers of one network for the test images."""

    nearest: Ints
    """Class of each, before any threshold (N + M,)."""
    scores: Mapping[str, Floats]
    """Scores by name, each (N + M,)."""
    z: Floats


@dataclass(frozen=True, eq=False)
class Decided:
    """Decisions of the stored thresholds about the test images, each (N + M,)."""

    answer: Ints
    """Class of each, -1 for unknown."""
    p_values: Floats
    """NaN without held-out images."""
    typical: Bools
    """Whether it is so like the training images that typicality alone does not reject it."""


@dataclass(frozen=True, eq=False)
class Measured:
    """The test images and the answers of the model, and of the plain softmax before it."""

    known: Samples
    unknown: Samples | None
    model: Answered
    softmax: Answered | None
    decided: Decided | None
    """The decisions. None without a threshold."""
    score: str
    """The score that decides."""
    thresholds: Mapping[str, float]
    all_images: tuple[int, int]
    """Numbers of all known and unknown test images."""

    @property
    def answer(self) -> Ints | None:
        """Class of each image, -1 for unknown. None without a threshold."""
        return self.decided.answer if self.decided else None

    @property
    def correct(self) -> Bools:
        """Whether each known image is nearest to its own class (N,)."""
        correct_N: Bools = self.model.nearest[: len(self.known)] == self.known.labels
        return correct_N

    @property
    def sampled(self) -> str:
        """Sentence about how many test images the report shows. Empty if it shows all."""
        used = (len(self.known), 0 if self.unknown is None else len(self.unknown))
        if used == self.all_images:
            return ""
        text = " and ".join(f"{n:,} of {total:,}" for n, total in zip(used, self.all_images, strict=True))
        text = f" Drawn from {text} known and unknown test images, evenly spaced;"
        return f"{text} the table of results is of all."

    def split(self, scores: Floats) -> tuple[Floats, Floats | None]:
        """Return the scores of the known images, and of the unknown ones. None: there are none."""
        n = len(self.known)
        return scores[:n], scores[n:] if self.unknown is not None else None


@dataclass(frozen=True, eq=False)
class Mined:
    """The training images by quality, and the prototypes."""

    samples: Samples
    r_N: Floats
    correct_N: Floats
    """Share of the classifiers that name an image correctly (T,)."""
    predicted_N: Ints
    """Class by the first classifier (T,)."""
    prototypes: PrototypeSet
    symbol: str
    """r, or the name of another quality rule."""

    @functools.cached_property
    def position_of(self) -> dict[int, int]:
        """Position of each sample, by its id."""
        return {int(i): position for position, i in enumerate(self.samples.ids)}


def plain_names(names: Sequence[str]) -> list[str]:
    """Return names on one line each, without the WordNet id if they differ without it.

    >>> plain_names(["n02012849 crane", "n03126707 crane", "n02279972 monarch", "n01 owl"])
    ['n02012849 crane', 'n03126707 crane', 'monarch', 'n01 owl']
    """
    given = [printable(name) for name in names]
    short = [re.sub(r"^n\d{8} (?=.)", "", name) for name in given]
    count = Counter([*short, *(name for name, one in zip(given, short, strict=True) if name != one)])
    return [one if count[one] == 1 else name for name, one in zip(given, short, strict=True)]


def unseen(place: int | None, name: str) -> list[str]:
    """Return the text in place of a missing picture: its row, or the last part of its path.

    >>> unseen(None, "data/features.npz[17]"), unseen(None, "img/17.png"), unseen(3, "img/17.png")
    (['[17]'], ['17.png'], [])
    """
    if place is not None:
        return []
    row = re.search(r"\[[0-9]+\]$", name)
    return [row[0] if row else printable(os.path.basename(name))]


def short_name(name: str) -> str:
    """Return the name that the report shows for a file, on one line."""
    return printable(short_path(name))
