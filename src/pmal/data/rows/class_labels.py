"""Labels as people store them, numbers or names, as class indices. Imports no torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pmal.data.conversions import whole_numbers
from pmal.data.samples import Ids
from pmal.errors import DataError

if TYPE_CHECKING:
    from pmal.data.rows.formats import Entry

Names = tuple[str, ...] | None


def class_indices(given: "Entry", names: Names, rows: int | None, what: str) -> tuple[Ids, Names]:
    """Return the class of each sample (N,), and the names of the classes if there are any.

    Args:
        given: the labels.
        names: of all classes, in their order. Without them, classes with names are sorted by name.
        rows: how many classes there are, if a head says so.
        what: what an error calls the labels.

    >>> class_indices(["dog", "cat", "dog"], None, rows=None, what="labels")
    (array([1, 0, 1]), ('cat', 'dog'))
    """
    if names is not None:
        _check_class_names(names, rows)
    if isinstance(given, list):
        return _from_names(given, names, rows, what)
    labels_N = whole_numbers(given, what)
    limit = rows if names is None else len(names)
    outside = labels_N < 0 if limit is None else (labels_N < 0) | (labels_N >= limit)
    if outside.any():
        i = int(outside.argmax())
        classes = "count from 0" if limit is None else f"are 0 to {limit - 1}"
        raise DataError(f"{what}: sample {i} has label {int(labels_N[i])}, but classes {classes}")
    return labels_N, names


def only_present(labels_N: NDArray[np.int64], names: Names, what: str) -> tuple[Ids, Names]:
    """Return the same classes without those that have no sample, renumbered; two at least must remain.

    >>> only_present(np.array([5, 9, 5]), None, "labels")
    (array([0, 1, 0]), ('5', '9'))
    """
    present, indices_N = np.unique(labels_N, return_inverse=True)
    if not len(present):
        raise DataError(f"{what}: no samples: two classes or more are needed")
    if len(present) < 2:
        only = int(present[0])
        raise DataError(
            f"{what}: all samples are of class {only if names is None else repr(names[only])}: two classes "
            "or more are needed"
        )
    if np.array_equal(present, np.arange(len(present))) and (names is None or len(names) == len(present)):
        return labels_N, names
    return indices_N, tuple(str(k) if names is None else names[k] for k in present.tolist())


def _from_names(
    given: Sequence[str], names: Names, rows: int | None, what: str
) -> tuple[Ids, tuple[str, ...]]:
    if names is None:
        names = tuple(sorted(set(given)))
        if rows is not None and len(names) != rows:
            raise DataError(
                f"{what}: {len(names)} different classes, but the heads have {rows}: add class_names, in the "
                "order of the heads' rows"
            )
    index_of = {name: index for index, name in enumerate(names)}
    unknown = [(i, name) for i, name in enumerate(given) if name not in index_of]
    if unknown:
        i, name = unknown[0]
        raise DataError(f"{what}: sample {i} is of class {name!r}, which is not among the class_names")
    return np.array([index_of[name] for name in given], dtype=np.int64), names


def _check_class_names(names: tuple[str, ...], rows: int | None) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"class_names: {twice!r} occurs twice: every class needs its own name")
    if rows is not None and len(names) != rows:
        raise DataError(f"class_names: {len(names)} names, but the heads have {rows} classes")
