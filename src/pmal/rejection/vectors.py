"""Scores and labels from anywhere as vectors of numpy, or an error that names them. Imports no torch."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pmal.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    Values = ArrayLike | Tensor


def as_numbers(values: "Values", name: str) -> NDArray[Any]:
    """One number per sample."""
    if hasattr(values, "detach"):  # a tensor, known by its method: whoever has arrays only needs no torch
        tensor = values.detach().cpu()
        values = tensor.double() if tensor.is_floating_point() else tensor
    try:
        numbers = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be read as an array: pass one number per sample") from error
    if numbers.ndim != 1:
        raise DataError(f"{name} has shape {numbers.shape}: pass one number per sample")
    if numbers.dtype.kind not in "biuf":
        raise DataError(f"{name} has type {numbers.dtype}: pass one number per sample")
    return numbers


def as_scores(values: "Values", name: str) -> NDArray[np.float64]:
    """NaN counts as +inf: a sample that breaks the model must not pass as known."""
    scores = as_numbers(values, name).astype(np.float64)
    return np.where(np.isnan(scores), np.inf, scores)


def same_length(**arrays: NDArray[Any]) -> None:
    """Refuse two arrays of which one has more samples."""
    (first, a), (second, b) = arrays.items()
    if len(a) != len(b):
        raise DataError(f"{first} has {len(a)} values and {second} {len(b)}: pass one each per sample")
