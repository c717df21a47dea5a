"""Parquet in Hugging Face's image layout: `image: struct<bytes, path>` and `label: int64`.

A folder holds shards, told apart by how their names begin (`train-`, and `test-`, `val-` or `validation-`).
A single file, and a folder in which no name begins so, is one part, or two if a column `split` says train
or test. Class names come from the `huggingface` entry of the schema's metadata; without it the classes are
called "0", "1", ... up to the largest label.

`write_parquet` writes a single file of this layout.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pmal._runtime.files import atomic_path, make_folder
from pmal._runtime.memory import check_expansion
from pmal.data.decoding.decode import decode, encode_png
from pmal.data.samples import BadImage, EncodedStore, Ids, Pixels, Samples, Source
from pmal.data.sources._image_column import ImageColumn, arrow_errors
from pmal.errors import DataError

_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
_TEST_NAMES = ("test", "val", "valid", "validation")
_MAX_CLASSES = 1_000_000
_ROW_BYTES = 64
"""What a row takes in memory before its image is looked at: number, label, and the name of its part."""

GROUP_ROWS, GROUP_BYTES = 1000, 1 << 28
"""A row group that is written ends at either: it has to fit into memory, whatever the images are."""


@dataclass(frozen=True, eq=False)
class ParquetStore:
    """Encoded images in Parquet files: row i of this part is row `rows[i]` of the column."""

    column: ImageColumn
    rows: Ids

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        return self.column.name(int(self.rows[row]))

    def read(self, row: int) -> Pixels:
        return decode(self.encoded(row))

    def encoded(self, row: int) -> bytes:
        """Return the image as it is in the file. Raises `BadImage`."""
        data = self.column.bytes_at(int(self.rows[row]))
        if data is None:
            raise BadImage("no image bytes")
        return data


@dataclass(frozen=True)
class _Table:
    """What is known of some files before an image is asked for."""

    column: ImageColumn
    labels: Ids
    names: tuple[str, ...] | None


def open_parquet(path: str | Path) -> Source:
    """Return the data set in a Parquet file, or in a folder of shards."""
    path = Path(os.path.abspath(path))
    if not path.is_dir():
        return _open_by_column(path.stem, path, [path])
    shards = _shards(path)
    if "train" not in shards:
        return _open_by_column(path.name, path, shards[""])
    train = _read_table(shards["train"])
    test_files = next((shards[name] for name in _TEST_NAMES if name in shards), None)
    test = _read_table(test_files) if test_files else None
    names = _class_names([train] if test is None else [train, test])
    return Source(path.name, _part(train, names), None if test is None else _part(test, names))


def write_parquet(path: str | Path, parts: dict[str, Samples]) -> None:
    """Write samples as one file. Encoded images keep their bytes; arrays become PNG, losslessly.

    `parts` are called train and test; they share their class names. An image whose file is gone keeps its
    row, without bytes, so that no id shifts.
    """
    path = Path(path)
    names = {samples.class_names for samples in parts.values()}
    if len(names) != 1:
        raise ValueError("the parts of one file need the same class names")
    schema = _schema(names.pop(), with_split=len(parts) > 1)
    make_folder(path.parent)
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for part, samples in parts.items():
            for rows in _row_groups(part, samples):
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _schema(class_names: tuple[str, ...], with_split: bool) -> Any:
    features: dict[str, Any] = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(class_names)},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    fields = [("image", image), ("label", pa.int64())]
    if with_split:
        features["split"] = {"_type": "Value", "dtype": "string"}
        fields.append(("split", pa.string()))
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _row_groups(part: str, samples: Samples) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for position, label in enumerate(samples.labels.tolist()):
        data = _encoded(samples, position)
        image = {"bytes": data, "path": os.path.basename(samples.name(position))}
        rows.append({"image": image, "label": label, "split": part})
        size += len(data or b"")
        if len(rows) == GROUP_ROWS or size > GROUP_BYTES or position == len(samples) - 1:
            yield rows
            rows, size = [], 0


def _encoded(samples: Samples, position: int) -> bytes | None:
    if not isinstance(samples.store, EncodedStore):
        return encode_png(samples.read(position))
    try:
        return samples.store.encoded(int(samples.ids[position]))
    except BadImage:
        return None


def _open_by_column(name: str, path: Path, files: list[Path]) -> Source:
    """Return the data set in files whose names do not say what they hold.

    A column `split` says it, or they are one part.
    """
    table = _read_table(files)
    names = _class_names([table])
    splits = _read_splits(files)
    if splits is None:
        return Source(name, _part(table, names))
    train, test = split_rows(splits, path)
    return Source(name, _part(table, names, train), None if test is None else _part(table, names, test))


def split_rows(splits: NDArray[np.str_], path: Path) -> tuple[Ids, Ids | None]:
    """Return the rows of the training part and those of the test part, None if there is none."""
    if "train" not in splits:
        raise DataError(f"{path}: no row has split 'train'")
    test_name = next((each for each in _TEST_NAMES if each in splits), None)
    test = None if test_name is None else np.flatnonzero(splits == test_name)
    return np.flatnonzero(splits == "train"), test


def _shards(folder: Path) -> dict[str, list[Path]]:
    """Return the files by how their names begin: `train` and others, or all of them as ""."""
    files = sorted(file for file in folder.glob("*.parquet") if not file.name.startswith("."))
    if not files:
        raise DataError(f"{folder}: no .parquet files in it")
    parts: dict[str, list[Path]] = {}
    for file in files:
        found = re.match(r"(train|test|valid|validation|val)[-_.]", file.name)
        parts.setdefault(found[1] if found else "", []).append(file)
    if list(parts) != [""] and "train" not in parts:
        raise DataError(f"{folder}: no train-*.parquet next to {files[0].name}: add it, or give one file")
    return parts


def _read_table(files: list[Path]) -> _Table:
    with arrow_errors(files[0]):
        schema = pq.read_schema(files[0])
    image, label = _pick(schema, _IMAGE_COLUMNS, files[0]), _pick(schema, _LABEL_COLUMNS, files[0])
    leaf = _image_leaf(schema, image, files[0])
    labels, lengths = [], []
    for file in files:
        with arrow_errors(file), pq.ParquetFile(file) as reader:
            missing = {image, label} - set(reader.schema_arrow.names)
            if missing:
                raise DataError(f"{file}: no column {missing.pop()!r} as in {files[0].name}")
            # Few bytes can stand for any number of labels, but every image takes some of its own.
            check_expansion(_ROW_BYTES * reader.metadata.num_rows, file.stat().st_size, f"{file}: its rows")
            table = reader.read(columns=[label])
        labels.append(_labels_of(table.column(label), file))
        lengths.append(len(table))
    if not sum(lengths):
        raise DataError(f"{files[0]}: no rows in it")
    column = ImageColumn(tuple(files), tuple(lengths), leaf)
    return _Table(column, np.concatenate(labels), names_in(schema, label, files[0]))


def _read_splits(files: list[Path]) -> NDArray[np.str_] | None:
    """Return what the column `split` says of each row; None if no file has one."""
    found = {}
    for file in files:
        # Each text once, however often it is there: a few bytes can repeat a long one.
        with arrow_errors(file):
            named = ["split"] if "split" in pq.read_schema(file).names else []
        if named:
            with arrow_errors(file), pq.ParquetFile(file, read_dictionary=named) as reader:
                column = reader.read(columns=["split"]).column(0)
                found[file] = checked_splits(_short_texts(column), file)
    if not found:
        return None
    without = [file for file in files if file not in found]
    if without:
        raise DataError(f"{without[0]}: no column 'split' as in {next(iter(found)).name}")
    return np.concatenate(list(found.values()))


def _short_texts(column: Any) -> list[str]:
    found: list[str] = []
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_encode()
        names = [str(value)[:40] for value in chunk.dictionary.to_pylist()]
        found += [str(None) if i is None else names[i] for i in chunk.indices.to_pylist()]
    return found


def _pick(schema: Any, wanted: tuple[str, ...], file: Path) -> str:
    for name in wanted:
        if name in schema.names:
            return name
    found = ", ".join(map(repr, schema.names)) or "none"
    raise DataError(f"{file}: no column named {' or '.join(wanted)}; its columns are: {found}")


def _image_leaf(schema: Any, name: str, file: Path) -> str:
    """Return the path of the column that holds the encoded bytes."""
    kind, leaf = schema.field(name).type, name
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, leaf = kind.field("bytes").type, f"{name}.bytes"
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DataError(f"{file}: column {name!r} is {kind}, not encoded image bytes")
    return leaf


def _labels_of(column: Any, file: Path) -> Ids:
    if not pa.types.is_integer(column.type):
        raise DataError(f"{file}: the labels are {column.type}, not integers")
    if column.null_count:
        row = np.flatnonzero(column.is_null().to_numpy())[0]
        raise DataError(f"{file}: row {row} has no label")
    return np.asarray(column.to_numpy()).astype(np.int64)


def checked_splits(values: Sequence[str], file: Path) -> NDArray[np.str_]:
    """Return what a column `split` says; anything but training and test part is refused."""
    splits: NDArray[np.str_] = np.array(values, dtype=np.str_)
    other = np.flatnonzero(~np.isin(splits, ("train", *_TEST_NAMES)))
    if other.size:
        raise DataError(f"{file}: row {other[0]} has split {str(splits[other[0]])!r}, not train or test")
    return splits


def names_in(schema: Any, label: str, file: Path) -> tuple[str, ...] | None:
    """Return the class names that Hugging Face's metadata declare for a column; None without them."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return None
    try:
        feature = json.loads(text)["info"]["features"][label]
        names = feature.get("names")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DataError(f"{file}: its 'huggingface' metadata does not describe column {label!r}") from None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _class_names(tables: list[_Table]) -> tuple[str, ...]:
    """Return the class names of all parts, after the labels were checked against them."""
    named = {table.names for table in tables} - {None}
    if len(named) > 1:
        files = " and ".join(str(table.column.files[0]) for table in tables)
        raise DataError(f"{files}: their class names differ, so their labels mean different things")
    names = named.pop() if named else None
    count = _MAX_CLASSES if names is None else len(names)
    for table in tables:
        wrong = np.flatnonzero((table.labels < 0) | (table.labels >= count))
        if wrong.size:
            place, label = table.column.name(int(wrong[0])), table.labels[wrong[0]]
            raise DataError(
                f"{table.column.files[0].parent}: {place}: label {label} is not in 0..{count - 1}"
            )
    largest = max(int(table.labels.max()) for table in tables)
    return names or tuple(str(label) for label in range(largest + 1))


def _part(table: _Table, names: tuple[str, ...], rows: Ids | None = None) -> Samples:
    rows = np.arange(len(table.labels)) if rows is None else rows
    return Samples.whole(ParquetStore(table.column, rows), table.labels[rows], names)
