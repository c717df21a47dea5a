"""The named entries of an embedding file: .npz, .safetensors or Parquet. What they mean is not known here.

An entry is an array, a tensor, or a list of texts. Only entries with a name that is asked for are read.
Nothing of a file is ever unpickled, and what it declares must fit into memory before any of it is read.
torch and pyarrow are imported for the formats that need them: an exported model does without.
"""

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.memory import check_expansion, check_memory
from pmal.data.sources.npz import BROKEN, declared_arrays, load_arrays
from pmal.errors import DataError, MissingFileError, PmalError, first_line

if TYPE_CHECKING:
    from torch import Tensor

    Entry = NDArray[Any] | Tensor | list[str]

Known = re.Pattern[str]
KNOWN = re.compile(r"[zWb](_(0|[1-9][0-9]*))?|embeddings?|features|labels?|files?|paths?|ids?|class_names")
"""Names of what can be mined."""

_BROKEN = (*BROKEN, struct.error)


def read_entries(path: Path, known: Known = KNOWN) -> tuple[dict[str, "Entry"], list[str]]:
    """Return the entries with a known name, and the names of the others."""
    _check_is_file(path)
    return _READERS[path.suffix.lower()](path, known)


def is_embedding_file(path: Path) -> bool:
    """Return whether the name is one of a file of embeddings, or of arrays of any kind."""
    return path.suffix.lower() in _READERS


def entry_names(path: Path) -> list[str]:
    """Return the names of all that an .npz or Parquet file holds; none if it is not readable."""
    try:
        return _column_names(path) if path.suffix.lower() == ".parquet" else list(declared_arrays(path))
    except _BROKEN:  # also a DataError
        return []


def _column_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except pa.ArrowException:
        return []


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path}: a folder: name a file of embeddings ({', '.join(_READERS)})")
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    if path.suffix.lower() not in _READERS:
        raise DataError(f"{path}: embeddings are read from files that end in {', '.join(_READERS)}")
    if not path.stat().st_size:
        raise DataError(f"{path}: an empty file")


def _split_names(names: Iterable[str], known: Known) -> tuple[list[str], list[str]]:
    wanted: list[str] = []
    other: list[str] = []
    for name in names:
        (wanted if known.fullmatch(name) else other).append(name)
    return wanted, other


# -- .npz


def _read_npz(path: Path, known: Known) -> tuple[dict[str, "Entry"], list[str]]:
    declared = declared_arrays(path)
    wanted, other = _split_names(declared, known)
    for name in wanted:
        if declared[name][1].hasobject:
            raise DataError(f"{path}: {name} holds Python objects: save numbers, or strings with dtype=str")
    arrays = load_arrays(path, {name: declared[name] for name in wanted})
    return {name: _entry(array, f"{path}: {name}") for name, array in arrays.items()}, other


def _entry(array: NDArray[Any], what: str) -> "Entry":
    if array.dtype.kind not in "US":
        return array
    if array.ndim != 1:
        raise DataError(f"{what}: expected a list of texts, got shape {array.shape}")
    try:
        texts: list[str] = (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).tolist()
    except UnicodeDecodeError:
        raise DataError(f"{what}: its texts are not UTF-8") from None
    return texts


# -- .safetensors


def _read_safetensors(path: Path, known: Known) -> tuple[dict[str, "Entry"], list[str]]:
    # The sizes in the header cannot exceed the file: safetensors checks that.
    from safetensors import SafetensorError, safe_open

    check_memory(path.stat().st_size, str(path))
    entries: dict[str, Entry] = {}
    try:
        with safe_open(path, framework="pt") as file:
            wanted, other = _split_names(file.keys(), known)
            for name in wanted:
                entries[name] = file.get_tensor(name)
            metadata = file.metadata() or {}
    except (SafetensorError, *_BROKEN) as error:
        raise DataError(f"{path}: not readable as safetensors ({first_line(error)})") from None
    return entries | _from_metadata(path, metadata, entries, known), other


# -- Parquet


def _read_parquet(path: Path, known: Known) -> tuple[dict[str, "Entry"], list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pmal.data.rows.parquet_columns import read_column

    try:
        with pq.ParquetFile(path) as file:
            wanted, other = _split_names(file.schema_arrow.names, known)
            fits = partial(check_expansion, packed=path.stat().st_size, what=str(path))
            entries: dict[str, Entry] = {
                name: read_column(file, name, f"{path}: {name}", fits) for name in wanted
            }
            schema = file.schema_arrow
    except PmalError:
        raise
    except (pa.ArrowException, *_BROKEN) as error:
        raise DataError(f"{path}: not readable as Parquet ({first_line(error)})") from None
    raw = schema.metadata or {}
    metadata = {key.decode(errors="replace"): text.decode(errors="replace") for key, text in raw.items()}
    entries |= _from_metadata(path, metadata, entries, known)
    if known.fullmatch("class_names") and "class_names" not in entries:
        entries |= _declared_classes(path, schema)
    return entries, other


def _declared_classes(path: Path, schema: Any) -> dict[str, "Entry"]:
    """Return the names that Hugging Face's metadata give the classes, if they do."""
    from pmal.data.sources.parquet import names_in

    label = next((name for name in ("label", "labels") if name in schema.names), None)
    names = None if label is None else names_in(schema, label, path)
    return {"class_names": list(names)} if names else {}


# -- what stands in the metadata of formats that hold no texts, or no second table


def _from_metadata(
    path: Path, metadata: Mapping[str, str], taken: Iterable[str], known: Known
) -> dict[str, "Entry"]:
    """Return the entries given as JSON lists: texts, or numbers, nested for a matrix."""
    found: dict[str, Entry] = {}
    for name in sorted(name for name in metadata if known.fullmatch(name)):
        if name in taken:
            raise DataError(f"{path}: {name} occurs twice, once in the metadata: remove one")
        try:
            content = json.loads(metadata[name])
            texts = isinstance(content, list) and all(isinstance(text, str) for text in content)
            found[name] = content if texts else np.array(content)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}: {name} in the metadata is not a JSON list ({first_line(error)})"
            ) from None
    return found


_READERS: dict[str, Callable[[Path, Known], tuple[dict[str, "Entry"], list[str]]]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}
