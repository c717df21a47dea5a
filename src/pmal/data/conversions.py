"""Arrays, tensors and lists from anywhere as numbers, or an error that names them.

torch is imported where a tensor is asked for, and nowhere else.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pmal.data.samples import Ids, Vectors
from pmal.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    Values = ArrayLike | Tensor


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Return an array; a tensor may be on any device. What numpy can share is not copied.

    >>> as_array([[1, 2], [3, 4]], "X").shape
    (2, 2)
    """
    if hasattr(values, "detach"):  # a tensor, known by its method: whoever has arrays only needs no torch
        values = values.detach().cpu()
        if values.is_floating_point() and values.dtype.itemsize < 4:  # numpy has no bfloat16
            values = values.float()
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        raise DataError(f"{name} cannot be read as one array: pass samples of one shape") from None


def as_numbers(values: "Values", name: str) -> NDArray[Any]:
    """Return one number per sample."""
    numbers = as_array(values, name)
    if numbers.ndim != 1:
        raise DataError(f"{name} has shape {numbers.shape}: pass one number per sample")
    if numbers.dtype.kind not in "biuf":
        raise DataError(f"{name} has type {numbers.dtype}: pass one number per sample")
    return numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers


def as_scores(values: "Values", name: str) -> NDArray[np.float64]:
    """Return one score per sample. NaN counts as +inf: what breaks the model must not pass as known."""
    scores = as_numbers(values, name).astype(np.float64)
    return np.where(np.isnan(scores), np.inf, scores)


def same_length(**arrays: NDArray[Any]) -> None:
    """Refuse two arrays of which one has more samples."""
    (first, a), (second, b) = arrays.items()
    if len(a) != len(b):
        raise DataError(f"{first} has {len(a)} values and {second} {len(b)}: pass one each per sample")


def whole_numbers(values: Any, name: str) -> Ids:
    """Return a vector of whole numbers as int64."""
    array = as_array(values, name)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(f"{name}: expected a vector of integers, got {array.dtype} of shape {array.shape}")
    numbers: Ids = array.astype(np.int64)
    return numbers


def single_precision(array: NDArray[Any]) -> Vectors:
    """Return the numbers as float32; what overflows is infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def floats(values: "Values", name: str, dimensions: int) -> "Tensor":
    """Return real numbers as a tensor in at least single precision; arrays are shared where torch can."""
    import torch

    if not isinstance(values, torch.Tensor):
        array = as_array(values, name)
        if array.dtype.kind not in "fiu":
            raise DataError(f"{name}: expected real numbers, got {array.dtype}")
        dtype = np.float32 if array.dtype.itemsize <= 4 and array.dtype.kind == "f" else np.float64
        # torch warns of arrays that are read-only, such as memory maps, and refuses swapped bytes.
        values = torch.from_numpy(np.require(array, dtype, ["C", "W"]))
    if values.ndim != dimensions or 0 in values.shape[1:]:
        kind = {1: "a vector", 2: "a matrix with columns"}[dimensions]
        raise DataError(f"{name}: expected {kind}, got shape {tuple(values.shape)}")
    tensor = values.detach()
    return tensor if tensor.dtype == torch.float64 else tensor.float()
