"""The encoded images in one column of Parquet files, by row, in every process that asks.

Parquet has no random access. So the column is read once, when the first image is asked for. If it is too
large to be held in memory, or worker processes need it too, it is copied once into an uncompressed Arrow file
that all of them map.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmal._runtime.memory import check_expansion
from pmal.data.sources._spool import make_spool
from pmal.errors import DataError, MissingFileError, first_line

SPOOL_BYTES = 1 << 30
"""Files of more bytes than this together are copied and mapped instead of being held in memory."""

_ROWS = 1024
_BATCH_BYTES = 1 << 29
"""What a batch may take: in a column with a dictionary, each of its rows may be all that is stored."""
_SPOOL_SCHEMA = pa.schema([("bytes", pa.large_binary())])


class ImageColumn:
    """Row i over all files, in their order, with `lengths` rows each. `leaf` is the path of the column."""

    def __init__(self, files: tuple[Path, ...], lengths: tuple[int, ...], leaf: str) -> None:
        self.files = files
        self.leaf = leaf
        self.starts = np.cumsum([0, *lengths])
        self._spool: Path | None = None
        self._chunks: list[Any] = []
        self._chunk_starts = self.starts[:1]
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what worker processes need.

        They map one copy together instead of each holding one in memory.
        """
        with self._lock:
            self._spool = self._spool or self._write_spool()
        state: dict[str, Any] = self.__dict__ | {"_chunks": [], "_lock": None}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._lock = threading.Lock()

    def name(self, row: int) -> str:
        """Return the file and the row, as errors name the image."""
        file = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"{self.files[file].name} row {row - int(self.starts[file])}"

    def bytes_at(self, row: int) -> bytes | None:
        """Return the encoded image; None if the file has none in this row."""
        self._prepare()
        chunk = int(np.searchsorted(self._chunk_starts, row, "right")) - 1
        data: bytes | None = self._chunks[chunk][row - int(self._chunk_starts[chunk])].as_py()
        return data

    def _is_large(self) -> bool:
        return sum(os.path.getsize(file) for file in self.files) > SPOOL_BYTES

    def _prepare(self) -> None:
        with self._lock:
            if self._chunks:
                return
            if self._spool is None and self._is_large():
                self._spool = self._write_spool()
            chunks = list(self._held() if self._spool is None else _mapped(self._spool))
            self._chunk_starts = np.cumsum([0, *map(len, chunks)])
            if self._chunk_starts[-1] != self.starts[-1]:
                raise DataError(f"{self.files[0].parent}: the files have changed since they were opened")
            self._chunks = chunks

    def _held(self) -> Iterator[Any]:
        """Open the file in the block, as long as memory is there for it."""
        total, packed = 0, sum(os.path.getsize(file) for file in self.files)
        for data in self._read():
            total += data.nbytes
            check_expansion(total, packed, f"{self.files[0]}: its images")
            yield data

    def _read(self) -> Iterator[Any]:
        for file in self.files:
            with arrow_errors(file), pq.ParquetFile(file, pre_buffer=False) as reader:
                for batch in reader.iter_batches(batch_size=_rows(reader), columns=[self.leaf]):
                    column = batch.column(0)
                    data = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
                    yield data.cast(pa.large_binary())

    def _write_spool(self) -> Path:
        path = Path(tempfile.gettempdir())
        try:
            path = make_spool(self) / "images.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SPOOL_SCHEMA) as writer:
                for data in self._read():
                    writer.write_batch(pa.record_batch([data], schema=_SPOOL_SCHEMA))
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{path}: cannot be written ({reason}): set TMPDIR to a larger disk") from None
        return path


def _rows(reader: Any) -> int:
    """Return how many rows to read at a time, so that a batch fits into memory."""
    # Not by column: on a damaged description of one, pyarrow ends the process.
    groups = [reader.metadata.row_group(group) for group in range(reader.metadata.num_row_groups)]
    largest = max([1, *(int(group.total_byte_size) for group in groups)])
    return max(1, min(_ROWS, _BATCH_BYTES // largest))


@contextmanager
def arrow_errors(file: Path) -> Iterator[None]:
    """Turn what pyarrow raises on a missing or broken file into a `DataError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(f"{file}: no such file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names of columns are text
        raise DataError(f"{file}: not readable as Parquet ({first_line(error)}): fetch it again") from None


def _mapped(spool: Path) -> Iterator[Any]:
    reader = pa.ipc.open_file(pa.memory_map(str(spool)))
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number).column(0)
