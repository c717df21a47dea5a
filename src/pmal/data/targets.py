"""Labels as people write them, integers or text, and the class numbers 0 .. K-1 that everything else uses.

Unknown is -1 in both. N samples, K classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal.data.conversions import as_array
from pmal.data.samples import Ids
from pmal.errors import DataError

UNKNOWN = -1
Labels = NDArray[Any]
"""int64, or objects: text and, where a sample is unknown, the integer -1."""


@dataclass(frozen=True, eq=False)
class ClassLabels:
    """The classes in the order of their numbers."""

    values: Labels
    """int64 or text (K,)."""

    @classmethod
    def of(cls, y: Any, count: int) -> "ClassLabels":
        """The different labels of `count` training samples, sorted.

        >>> ClassLabels.of(["wolf", "dog", "wolf"], 3).names
        ('dog', 'wolf')
        """
        labels_N = read_labels(y, count)
        unknown = np.flatnonzero(labels_N == UNKNOWN)
        if len(unknown):
            raise DataError(
                f"y[{unknown[0]}] is -1, which stands for unknown: train on known classes, and pass samples "
                "of unknown ones to calibrate"
            )
        return cls(np.array(sorted(set(labels_N.tolist()))))

    @classmethod
    def named(cls, names: tuple[str, ...], integers: bool = False) -> "ClassLabels":
        """The opposite of `names`."""
        return cls(np.array([int(name) for name in names]) if integers else np.array(names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(value) for value in self.values.tolist())

    @property
    def are_integers(self) -> bool:
        return self.values.dtype.kind == "i"

    def numbers(self, y: Any, count: int) -> Ids:
        """The class number of each label; -1 for unknown."""
        labels_N = read_labels(y, count)
        number = {value: k for k, value in enumerate(self.values.tolist())} | {UNKNOWN: UNKNOWN}
        for place, label in enumerate(labels_N.tolist()):
            if label not in number:
                raise DataError(f"y[{place}] is {label!r}, no class of this model: write -1 for unknown")
        return np.array([number[label] for label in labels_N.tolist()], dtype=np.int64)

    def labels(self, numbers_N: Ids) -> Labels:
        """The label of each class number.

        >>> ClassLabels.named(("dog", "wolf")).labels(np.array([1, -1]))
        array(['wolf', -1], dtype=object)
        """
        table = np.array([*self.values.tolist(), UNKNOWN], dtype=np.int64 if self.are_integers else object)
        found: Labels = table[numbers_N]
        return found

    def with_class(self, name: Any) -> "ClassLabels":
        """One more class at the end."""
        [label] = read_labels([name], 1).tolist()
        if isinstance(label, int) != self.are_integers or label == UNKNOWN:
            kind = "an integer other than -1" if self.are_integers else "text"
            raise DataError(f"class {name!r}: its name must be {kind}, as those of the others are")
        if label in self.values.tolist():
            raise DataError(f"class {name!r} exists already: choose another name")
        return ClassLabels(np.array([*self.values.tolist(), label]))


def read_labels(y: Any, count: int) -> Labels:
    """One label per sample: int64, or objects where they are text.

    >>> read_labels(["dog", -1], 2)
    array(['dog', -1], dtype=object)
    """
    array = as_array(y, "y")
    if array.shape != (count,):
        raise DataError(
            f"y has shape {array.shape} for {count} samples: pass one label each, of shape ({count},)"
        )
    if array.dtype.kind in "iub":
        if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
            raise DataError("y has labels beyond 2^63: use smaller integers, or text")
        return array.astype(np.int64)
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.floor(array)).all():
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        place = int(np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))[0])
        raise DataError(f"y[{place}] is {array[place]}: labels are integers or text, and -1 is unknown")
    values = [v.item() if isinstance(v, np.generic) else v for v in array.tolist()]
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return array.astype(np.int64)
    found = np.empty(count, dtype=object)
    for place, value in enumerate(values):
        if not isinstance(value, str) and value != UNKNOWN:
            raise DataError(f"y[{place}] is {value!r}: labels are integers or text, and -1 is unknown")
        # A list of text and -1 becomes an array of text: there the number is written out.
        found[place] = UNKNOWN if value in (UNKNOWN, str(UNKNOWN)) else value
    return found
