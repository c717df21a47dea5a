"""Labels as people store them, numbers or names, as the class indices that mining works with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.errors import DataError
from pmal.mining._checks import first, integers

Names = tuple[str, ...] | None
Labels = NDArray[Any] | Tensor | list[str]


def class_indices(given: Labels, names: Names, rows: int | None, what: str) -> tuple[Tensor, Names]:
    """The class of each sample (N,), and the names of the classes if there are any.

    names: of all classes, in their order. Without them, classes with names are sorted by name.
    rows: how many classes there are, where a head says so.

    >>> class_indices(["dog", "cat", "dog"], None, rows=None, what="labels")
    (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    if names is not None:
        _check_class_names(names, rows)
    if isinstance(given, list):
        return _from_names(given, names, rows, what)
    labels_N = integers(given, what, len(given))
    limit = rows if names is None else len(names)
    outside = labels_N < 0 if limit is None else (labels_N < 0) | (labels_N >= limit)
    if outside.any():
        i = first(outside)
        classes = "count from 0" if limit is None else f"are 0 to {limit - 1}"
        raise DataError(f"{what}: sample {i} has label {int(labels_N[i])}, but classes {classes}")
    return labels_N, names


def only_present(labels_N: Tensor, names: Names, what: str) -> tuple[Tensor, Names]:
    """The same classes without those that have no sample, renumbered; two at least must remain.

    >>> only_present(torch.tensor([5, 9, 5]), None, "labels")
    (tensor([0, 1, 0]), ('5', '9'))
    """
    present, indices_N = np.unique(labels_N.numpy(), return_inverse=True)
    if len(present) < 2:
        only = int(present[0])
        raise DataError(
            f"{what}: all samples are of class {only if names is None else repr(names[only])}: two classes "
            "or more are needed"
        )
    if np.array_equal(present, np.arange(len(present))) and (names is None or len(names) == len(present)):
        return labels_N, names
    return torch.from_numpy(indices_N), tuple(str(k) if names is None else names[k] for k in present.tolist())


def _from_names(
    given: Sequence[str], names: Names, rows: int | None, what: str
) -> tuple[Tensor, tuple[str, ...]]:
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
    return torch.tensor([index_of[name] for name in given]), names


def _check_class_names(names: tuple[str, ...], rows: int | None) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"class_names: {twice!r} occurs twice: every class needs its own name")
    if rows is not None and len(names) != rows:
        raise DataError(f"class_names: {len(names)} names, but the heads have {rows} classes")
