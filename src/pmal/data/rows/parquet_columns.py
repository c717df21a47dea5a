"""Columns of a Parquet file as arrays: vectors as a matrix, whole numbers, texts. No value may be missing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pmal.errors import DataError

CheckFits = Callable[[int], None]
_BATCH, _TEXTS = 4096, 64


def read_column(file: Any, name: str, what: str, check_fits: CheckFits) -> NDArray[Any] | list[str]:
    """Return one column of an open file; `what` is what an error calls it.

    `check_fits` is told how many bytes the column takes before it is read, and raises if they are too many.
    """
    kind = file.schema_arrow.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_list(kind) and pa.types.is_floating(kind.value_type):
        return _matrix(file, name, what, check_fits)
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{what}: a column of {kind}, not of integers, texts or lists of floats")
    check_fits(8 * file.metadata.num_rows)
    column = _column(file, name, kind, check_fits)
    if column.null_count:
        raise DataError(f"{what}: row {_first(column.is_null())} has no value")
    if pa.types.is_integer(kind):
        return np.asarray(column.to_numpy())
    texts: list[str] = column.to_pylist()
    return texts


def _column(file: Any, name: str, kind: Any, check_fits: CheckFits) -> Any:
    """Read it in batches, each small: a few bytes of a file can repeat a long text."""
    chunks: list[Any] = []
    total = 0
    for batch in file.iter_batches(_TEXTS if not pa.types.is_integer(kind) else _BATCH, columns=[name]):
        total += batch.nbytes
        check_fits(total)
        chunks.append(batch.column(0).cast(kind))
    return pa.chunked_array(chunks, kind)


def _matrix(file: Any, name: str, what: str, check_fits: CheckFits) -> NDArray[Any]:
    """Return lists of equal length as a matrix, read in batches: all are in memory once only."""
    matrix, start = np.empty((0, 1), np.float32), 0
    for batch in file.iter_batches(_BATCH, columns=[name]):
        numbers = _rows(batch.column(0), matrix.shape[1] if start else None, start, what)
        if not start:
            # Few bytes of a file can stand for any number of rows.
            check_fits(file.metadata.num_rows * numbers[:1].nbytes)
            matrix = np.empty((file.metadata.num_rows, numbers.shape[1]), numbers.dtype)
        matrix[start : start + len(numbers)] = numbers
        start += len(numbers)
    if start != file.metadata.num_rows:
        raise DataError(f"{what}: {start} rows, but the file declares {file.metadata.num_rows}")
    return matrix


def _rows(chunk: Any, width: int | None, start: int, what: str) -> NDArray[Any]:
    if chunk.null_count:
        raise DataError(f"{what}: row {start + _first(chunk.is_null())} has no value")
    lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[0])
    if (lengths != width).any():
        row = int(np.flatnonzero(lengths != width)[0])
        raise DataError(f"{what}: row {start + row} has {lengths[row]} numbers, the first one has {width}")
    values = chunk.flatten()
    if values.null_count:
        raise DataError(f"{what}: row {start + _first(values.is_null()) // width} has a number missing")
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(chunk), width)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _first(mask: Any) -> int:
    return int(np.flatnonzero(np.asarray(mask))[0])
