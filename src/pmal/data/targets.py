"""Labels as people write them, and the class numbers 0 .. K-1 that everything else uses.

Labels are integers, whole floats, truth values or text. Unknown is -1, or the label that the caller chose for
it. N samples, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal.data.conversions import as_array
from pmal.data.samples import Ids
from pmal.errors import DataError, UsageError

UNKNOWN = -1
Labels = NDArray[Any]
"""int64, float64, bool or text; objects if unknown is of another kind than the classes."""

KINDS = {"i": "integers", "f": "floats", "b": "booleans", "U": "text"}
"""What labels can be, by numpy's letter."""
_ONE_OF_KIND = {"integers": "an integer", "floats": "a number", "booleans": "a truth value", "text": "text"}


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """The classes in the order of their numbers."""

    values: Labels
    """int64, float64, bool or text (K,)."""
    unknown: Any = UNKNOWN
    """What a sample of no class is called."""

    def __post_init__(self) -> None:
        """Refuse a label for unknown that could not be told from others."""
        fits = isinstance(self.unknown, int | float | str) and self.unknown == self.unknown
        if not fits or isinstance(self.unknown, bool):
            raise UsageError(f"unknown_label is {self.unknown!r}: pass a number or a text, such as -1")
        if self.unknown in self.values.tolist():
            raise DataError(
                f"unknown_label is {self.unknown!r}, which is a class as well: pass one that no class has"
            )

    @classmethod
    def of(cls, y: Any, count: int, unknown: Any = UNKNOWN) -> "ClassLabels":
        """Return the different labels of `count` training samples, sorted.

        >>> ClassLabels.of(["wolf", "dog", "wolf"], 3).names
        ('dog', 'wolf')
        """
        labels_N = read_labels(y, count, unknown)
        for place, label in enumerate(labels_N.tolist()):
            if label == unknown:
                raise DataError(
                    f"y[{place}] is {label!r}, which stands for unknown: train on known classes, and pass "
                    "samples of unknown ones to calibrate, or choose another unknown_label"
                )
        return cls(np.array(sorted(set(labels_N.tolist()))), unknown)

    @classmethod
    def named(cls, names: tuple[str, ...], kind: str = "text", unknown: Any = UNKNOWN) -> "ClassLabels":
        """Return the classes by their `names` and their `kind`."""
        read: dict[str, Callable[[str], Any]] = {"integers": int, "floats": float, "text": str}
        values = [read.get(kind, "True".__eq__)(name) for name in names]
        return cls(np.array(values), unknown)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes as text."""
        return tuple(str(value) for value in self.values.tolist())

    @property
    def kind(self) -> str:
        """One of integers, floats, booleans and text."""
        return KINDS[self.values.dtype.kind]

    def numbers(self, y: Any, count: int) -> Ids:
        """Return the class number of each label; -1 for unknown."""
        labels_N = read_labels(y, count, self.unknown)
        # Numbers next to a text for unknown come as text: the names of the classes stand for them.
        number = {name: k for k, name in enumerate(self.names)} | {self.unknown: UNKNOWN}
        number |= {value: k for k, value in enumerate(self.values.tolist())}
        for place, label in enumerate(labels_N.tolist()):
            if label not in number:
                raise DataError(
                    f"y[{place}] is {label!r}, no class of this model: write {self.unknown!r} for unknown"
                )
        return np.array([number[label] for label in labels_N.tolist()], dtype=np.int64)

    def labels(self, numbers_N: Ids) -> Labels:
        """Return the label of each class number.

        They are of the kind of the classes if unknown is, too: numbers with a number, text with text.
        Truth values become numbers if unknown is one, as numpy has them; they compare equal.

        >>> ClassLabels.named(("dog", "wolf")).labels(np.array([1, -1]))
        array(['wolf', -1], dtype=object)
        >>> ClassLabels.named(("dog", "wolf"), unknown="unknown").labels(np.array([1, -1]))
        array(['wolf', 'unknown'], dtype='<U7')
        """
        mixed = (self.kind == "text") != isinstance(self.unknown, str)
        table = np.array([*self.values.tolist(), self.unknown], dtype=object if mixed else None)
        found: Labels = table[numbers_N]
        return found

    def with_class(self, name: Any) -> "ClassLabels":
        """Return the same with one more class at the end."""
        [label] = read_labels([name], 1, self.unknown).tolist()
        label = float(label) if self.kind == "floats" and type(label) is int else label
        if type(label) is not type(self.values.tolist()[0]) or label == self.unknown:
            kind = f"{_ONE_OF_KIND[self.kind]} other than {self.unknown!r}"
            raise DataError(f"class {name!r}: its name must be {kind}, as those of the others are")
        if label in self.values.tolist():
            raise DataError(f"class {name!r} exists already: choose another name")
        return ClassLabels(np.array([*self.values.tolist(), label]), self.unknown)


def read_labels(y: Any, count: int, unknown: Any = UNKNOWN) -> Labels:
    """Return one label per sample: int64, float64, bool, or objects if there is text among them.

    >>> read_labels(["dog", -1], 2)
    array(['dog', -1], dtype=object)
    """
    array = as_array(y, "y")
    if array.dtype.kind == "U" and isinstance(y, list | tuple):
        _check_texts(y, unknown)
    if array.shape != (count,):
        raise DataError(
            f"y has shape {array.shape} for {count} samples: pass one label each, of shape ({count},)"
        )
    if array.dtype.kind == "O":
        array = _narrowed(array)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
            raise DataError("y has labels beyond 2^63: use smaller integers, or text")
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        return _whole(array)
    return _texts(array, unknown)


def _check_texts(labels: Sequence[Any], unknown: Any) -> None:
    """Refuse what is no text in a list of text: numpy has written it out, a missing name as 'nan'.

    Where unknown is the only text, the others are numbers.
    """
    if any(isinstance(value, str) and value != unknown for value in labels):
        for place, value in enumerate(labels):
            _check_text(place, value, unknown)


def _narrowed(array: Labels) -> Labels:
    """Return objects that are all of one kind of number as an array of it."""
    values = [v.item() if isinstance(v, np.generic) else v for v in array.tolist()]
    for kind, dtype in ((bool, np.bool_), (int, np.int64), (float, np.float64)):
        if values and all(type(value) is kind for value in values):
            return np.array(values, dtype=dtype)
    return array


def _whole(array: Labels) -> Labels:
    wrong = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
    if len(wrong):
        raise DataError(
            f"y[{wrong[0]}] is {array[wrong[0]]}, a continuous value: labels are whole numbers or text"
        )
    return array.astype(np.float64)


def _texts(array: Labels, unknown: Any) -> Labels:
    found = np.empty(len(array), dtype=object)
    for place, value in enumerate(array.tolist()):
        _check_text(place, value, unknown)
        # A list of text and -1 becomes an array of text: there the number is written out.
        found[place] = unknown if value in (unknown, str(unknown)) else value
    return found


def _check_text(place: int, value: Any, unknown: Any) -> None:
    if not isinstance(value, str) and value != unknown:
        raise DataError(f"y[{place}] is {value!r}: labels are numbers or text, of one kind")
