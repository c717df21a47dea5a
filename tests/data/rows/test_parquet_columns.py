import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pmal.data.rows.parquet_columns import read_column
from pmal.errors import DataError


def _any_size(size):
    pass


def _open(column, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"x": column}), buffer, **options)
    buffer.seek(0)
    return pq.ParquetFile(buffer)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float32()),
        pa.list_(pa.float32(), 3),
        pa.large_list(pa.float64()),
        pa.list_(pa.float16()),
        pa.list_(pa.float16(), 3),
    ],
)
def test_lists_become_a_matrix(kind):
    rows = [[0.5, 1.0, -2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0], [9.0, 0.25, 1.0], [0.0, 0.0, 1.0]]
    for group in (1, 2, 100):
        found = read_column(_open(pa.array(rows, kind), row_group_size=group), "x", "x", _any_size)
        assert found.tolist() == rows
        assert found.dtype == kind.value_type.to_pandas_dtype()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, 1], pa.int32()), [3, 1]),
        (pa.array([3, 1], pa.uint8()), [3, 1]),
        (pa.array(["a", "é"]), ["a", "é"]),
        (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["b", "a", "b"]),
    ],
)
def test_numbers_and_texts(column, expected):
    assert list(read_column(_open(column), "x", "x", _any_size)) == expected


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1.0, 2.0], None]), "t: row 1 has no value"),
        (pa.array([[1.0, 2.0], [3.0, None]]), "t: row 1 has a number missing"),
        (pa.array([[1.0, 2.0], [3.0]]), "t: row 1 has 1 numbers, the first one has 2"),
        (pa.array([1, None, 2]), "t: row 1 has no value"),
        (pa.array(["a", "b", None]), "t: row 2 has no value"),
        (pa.array([1.5, 2.5]), "t: a column of double, not of integers, texts or lists of floats"),
        (pa.array([[1, 2], [3, 4]]), "t: a column of list<"),
        (pa.array([{"a": 1}]), "t: a column of struct<"),
    ],
)
@pytest.mark.parametrize("group", [1, 100])
def test_what_is_refused(column, message, group):
    with pytest.raises(DataError) as error:
        read_column(_open(column, row_group_size=group), "x", "t", _any_size)
    assert message in str(error.value)


def test_the_size_is_known_before_the_rows_are_read():
    """A hundred thousand equal vectors take few bytes in the file; only the first batch of them is read."""
    file = _open(pa.array([[1.0] * 50] * 100_000, pa.list_(pa.float32())))
    sizes = []

    def refuse(size):
        sizes.append(size)
        raise DataError("too large")

    with pytest.raises(DataError, match="too large"):
        read_column(file, "x", "x", refuse)
    assert sizes == [100_000 * 50 * 4]
    with pytest.raises(DataError, match="too large"):
        read_column(_open(pa.array([1, 2, 3])), "x", "x", refuse)
    assert sizes[1:] == [3 * 8]


def test_no_rows():
    assert len(read_column(_open(pa.array([], pa.list_(pa.float32()))), "x", "x", _any_size)) == 0
    assert isinstance(
        read_column(_open(pa.array([], pa.list_(pa.float32()))), "x", "x", _any_size), np.ndarray
    )
