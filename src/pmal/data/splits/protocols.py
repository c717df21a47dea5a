"""Which classes are known and which are unknown: the published split tables, and splits of other data.

Ids are the data sets' own label ids. The tables are in `protocols.json`. A published list is shipped as it
was published: its defects are computed and reported, never repaired.
"""

import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pmal.errors import UsageError, unknown_name

NUM_CLASSES = {
    "sample": 10,
    "mnist": 10,
    "svhn": 10,
    "cifar10": 10,
    "cifar+10": 10,
    "cifar+50": 10,
    "tinyimagenet": 200,
    "imagenet-100": 1000,
    "imagenet-200": 1000,
    "imagenet-lt": 1000,
}
FIRST_KNOWN = {"imagenet-100": 100, "imagenet-200": 200}
PUBLISHED_FAMILIES = ("neal", "arpl", "paper")
CIFAR10_ANIMALS = frozenset(range(2, 8))


@dataclass(frozen=True)
class Split:
    """Known and unknown classes. Class `known[k]` is trained as label k."""

    known: tuple[int, ...]
    unknown: tuple[int, ...]
    family: str
    index: int
    foreign: bool = False
    """The unknown ids are those of another set (CIFAR-100, the open set of ImageNet-LT); () is all of it."""

    @property
    def label(self) -> str:
        """Return the family and index, printed with every figure: splits alone move AUROC by several points.

        >>> get_split("cifar10", "arpl", 0).label
        'arpl/0'
        """
        return f"{self.family}/{self.index}"


def list_sets() -> tuple[str, ...]:
    """Return the data sets that have a split table."""
    return tuple(NUM_CLASSES)


def list_families(name: str) -> tuple[str, ...]:
    """Return the split families of a data set.

    >>> list_families("imagenet-lt")
    ('lt',)
    """
    if name not in NUM_CLASSES:
        raise unknown_name("data set with published splits", name, NUM_CLASSES)
    if name == "imagenet-lt":
        return ("lt",)
    return ("first",) if name in FIRST_KNOWN else PUBLISHED_FAMILIES


def splits(name: str, family: str) -> tuple[Split, ...]:
    """Return all splits of one family, by index."""
    families = list_families(name)
    if family not in families:
        raise unknown_name(f"split family of {name}", family, families)
    num_classes = NUM_CLASSES[name]
    if family == "lt":
        return (Split(tuple(range(num_classes)), (), family, 0, foreign=True),)
    if family == "first":
        return (_split_of(range(FIRST_KNOWN[name]), num_classes, family, 0),)
    entries = _published_entries(name, family)
    return tuple(_published_split(entry, num_classes, family, i) for i, entry in enumerate(entries))


def get_split(name: str, family: str, index: int) -> Split:
    """Return one split.

    Raises:
        UsageError: the index does not exist; the message says which do.
    """
    table = splits(name, family)
    if not 0 <= index < len(table):
        valid = "only split 0 exists" if len(table) == 1 else f"choose 0 to {len(table) - 1}"
        raise UsageError(f"{name} has no split {index} in family '{family}': {valid}")
    return table[index]


def split_defects(name: str, family: str) -> tuple[str, ...]:
    """Return the defects of a published table, one sentence each.

    >>> split_defects("cifar10", "arpl")
    ('cifar10 splits 0 and 1 have the same known classes',)
    """
    table = splits(name, family)
    by_classes: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for split in table:
        by_classes.setdefault((frozenset(split.known), frozenset(split.unknown)), []).append(split.index)
    # CIFAR+N varies its unknown classes: equal known classes alone are intended there.
    shared = "known and unknown" if table[0].foreign else "known"
    defects = [
        f"{name} {_splits_phrase(same)} have the same {shared} classes"
        for same in by_classes.values()
        if len(same) > 1
    ]
    animals = [s.index for s in table if name.startswith("cifar+") and CIFAR10_ANIMALS.intersection(s.known)]
    if animals:
        verb = "has" if len(animals) == 1 else "have"
        defects.append(f"{name} {_splits_phrase(animals)} {verb} animals among the known classes")
    return tuple(defects)


def as_json(table: Sequence[Split]) -> list[dict[str, list[int]]]:
    """Return plain lists and dictionaries for `json.dumps`.

    >>> as_json([named_split(["cat", "dog", "owl"], ["owl", "cat"])])
    [{'known': [2, 0], 'unknown': [1]}]
    """
    return [{"known": list(split.known), "unknown": list(split.unknown)} for split in table]


def named_split(class_names: Sequence[str], known: Sequence[str]) -> Split:
    """Return a split with the known classes in the given order; every other class is unknown.

    >>> named_split(["cat", "dog", "owl"], ["owl", "cat"]).known
    (2, 0)
    """
    in_source = Counter(class_names)
    for name, times in Counter(known).items():
        if name not in in_source:
            raise unknown_name("class", name, in_source)
        if times > 1:
            raise UsageError(f"known class '{name}' is given {times} times: name each class once")
        if in_source[name] > 1:
            raise UsageError(f"class name '{name}' belongs to {in_source[name]} classes: rename them apart")
    if len(known) < 2:
        raise UsageError("--known: a classifier needs at least 2 classes, such as cat,dog")
    return _split_of([list(class_names).index(name) for name in known], len(class_names), "named", 0)


def random_split(num_classes: int, num_known: int, seed: int) -> Split:
    """Return a split with `num_known` random known classes; the seed is its index."""
    if not 2 <= num_known <= num_classes:
        asked = f"--num-known: {num_known} known classes of {num_classes} asked for"
        raise UsageError(f"{asked}: choose 2 to {num_classes}")
    if seed < 0:
        raise UsageError(f"seed {seed} of a random split is negative: choose 0 or more")
    drawn = np.random.default_rng(seed).choice(num_classes, size=num_known, replace=False)
    return _split_of(sorted(drawn.tolist()), num_classes, "random", seed)


def all_known(num_classes: int) -> Split:
    """Return a split with every class known: the plain classifier, without an open-set test.

    >>> all_known(3)
    Split(known=(0, 1, 2), unknown=(), family='all', index=0, foreign=False)
    """
    return _split_of(range(num_classes), num_classes, "all", 0)


@functools.cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("protocols.json").read_text("utf-8"))
    return tables


def _published_entries(name: str, family: str) -> list[dict[str, list[int]]]:
    table_name = "mnist" if name == "sample" else name
    # The paper changes the number of known classes on three sets and follows Neal et al. on the others.
    table = _tables()[family] if table_name in _tables()[family] else _tables()["neal"]
    entries: list[dict[str, list[int]]] = table[table_name]
    return entries


def _published_split(entry: dict[str, list[int]], num_classes: int, family: str, index: int) -> Split:
    if "unknown_cifar100" in entry:
        return Split(tuple(entry["known"]), tuple(entry["unknown_cifar100"]), family, index, foreign=True)
    return _split_of(entry["known"], num_classes, family, index)


def _split_of(known: Sequence[int], num_classes: int, family: str, index: int) -> Split:
    unknown = sorted(set(range(num_classes)).difference(known))
    return Split(tuple(known), tuple(unknown), family, index)


def _splits_phrase(indices: list[int]) -> str:
    if len(indices) == 1:
        return f"split {indices[0]}"
    return f"splits {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
