"""Rows of embeddings in a file, by the names that people give them. Imports no torch.

| entry | what it is |
|---|---|
| `embeddings`, `embedding`, `features` or `z` | (N, D) floats; in Parquet a column of lists of equal length |
| `labels` or `label` | class of each row, integers or texts |
| `class_names` | texts; integers in `labels` are places among them |
| `files`, `file`, `paths` or `path` | image of each row, relative to the folder of the file |
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pmal.data.conversions import as_array, single_precision
from pmal.data.rows.formats import entry_names, is_embedding_file, read_entries
from pmal.data.samples import VectorStore
from pmal.data.sources.folder import FileStore
from pmal.errors import DataError

if TYPE_CHECKING:
    from pmal.data.rows.formats import Entry

EMBEDDINGS = ("embeddings", "embedding", "features", "z")
LABELS = ("labels", "label")
FILES = ("files", "file", "paths", "path")
IMAGES = ("x_train", "train_images", "images", "X", "image", "img")
"""What images are called: a file that has any is read as images."""
_SPACE = re.compile(r"z_[0-9]+")
_ROWS = re.compile("|".join((*EMBEDDINGS, *LABELS, *FILES, _SPACE.pattern)))


def holds_embeddings(path: Path) -> bool:
    """Return whether a file has embeddings and no images, by the names in it."""
    if path.suffix.lower() == ".safetensors":
        return path.is_file()
    names = set(entry_names(path)) if is_embedding_file(path) and path.is_file() else set()
    return not names & {*IMAGES} and any(name in EMBEDDINGS or _SPACE.fullmatch(name) for name in names)


def read_rows(path: Path) -> VectorStore:
    """Return the embeddings of a file; labels need not be there, and rows may be NaN."""
    entries, _ = read_entries(path, _ROWS)
    with naming(path):
        return row_store(entries, path)


def read_rows_of_one_class(path: Path) -> VectorStore:
    """Return the same; labels that tell several classes are refused."""
    entries, _ = read_entries(path, _ROWS)
    with naming(path):
        key = either(entries, *LABELS)
        given = [] if key is None else entries[key]
        found = set(given if isinstance(given, list) else np.asarray(given).ravel().tolist())
        if len(found) > 1:
            raise DataError(f"{key}: rows of {len(found)} classes: name a file that has those of one class")
        return row_store(entries, path)


def row_store(entries: Mapping[str, "Entry"], path: Path, part: str = "") -> VectorStore:
    """Return the embeddings of one part of a file, with their pictures if there are any.

    Args:
        entries: of the file.
        path: of the file.
        part: what the names of its entries begin with, "" or "test_".
    """
    name = embeddings_name(entries, part)
    vectors_ND = single_precision(embedding_array(entries[name], name))
    key = either(entries, *(part + file for file in FILES))
    files = None if key is None else texts(entries, key)
    if files is not None and len(files) != len(vectors_ND):
        raise DataError(f"{key}: {len(files)} names for {len(vectors_ND)} rows: every row needs exactly one")
    if files is not None and "" in files:
        raise DataError(f"{key}: row {files.index('')} has an empty one: name its image, or leave {key} out")
    pictures = None if files is None else FileStore(os.path.abspath(path.parent), files)
    return VectorStore(f"{path}: {name}" if part else str(path), vectors_ND, pictures)


def check_width(store: VectorStore, width: int) -> None:
    """Refuse rows that are not as wide as those that a model was fitted on."""
    given = store.vectors.shape[1]
    if given != width:
        fix = "embed with the network that it was fitted on"
        raise DataError(f"{store.origin}: embeddings of {given} numbers, but the model takes {width}: {fix}")


def embeddings_name(entries: Mapping[str, "Entry"], part: str = "") -> str:
    """Return the name of the one entry that holds embeddings."""
    name = either(entries, *(part + name for name in EMBEDDINGS))
    spaces = sorted(name for name in entries if _SPACE.fullmatch(name)) if not part else []
    if name is None and len(spaces) == 1:
        return spaces[0]
    if spaces:
        shown = ", ".join(spaces if name is None else [name, *spaces])
        raise DataError(f"several embeddings of each row, {shown}: keep one of them, as 'embeddings'")
    if name is None:
        found = ", ".join(entries) or "nothing"
        raise DataError(f"no '{part}embeddings' in it, numbers of shape (N, D); it has: {found}")
    return name


def embedding_array(entry: "Entry", name: str) -> NDArray[Any]:
    """Return embeddings (N, D) as floats of the precision that they have in the file, N and D at least 1."""
    if isinstance(entry, list):
        raise DataError(f"{name}: texts, not embeddings")
    real = entry.is_floating_point() if not isinstance(entry, np.ndarray) else entry.dtype.kind == "f"
    if not real or not 2 <= entry.dtype.itemsize <= 8:
        raise DataError(f"{name}: {entry.dtype}: embeddings must be float16, bfloat16, float32 or float64")
    array = as_array(entry, name)
    if array.ndim != 2 or not array.shape[1]:
        raise DataError(f"{name}: expected a matrix with columns, got shape {array.shape}")
    if not len(array):
        raise DataError(f"{name}: no samples")
    return array


def either(entries: Mapping[str, "Entry"], *names: str) -> str | None:
    """Return the name by which an entry goes, if it is there."""
    found = [name for name in names if name in entries]
    if len(found) > 1:
        raise DataError(f"both {' and '.join(found)}: remove one of them")
    return found[0] if found else None


def texts(entries: Mapping[str, "Entry"], key: str) -> tuple[str, ...] | None:
    """Return an entry that is a list of texts; None if it is not there."""
    found = entries.get(key)
    if found is None:
        return None
    if not isinstance(found, list):
        raise DataError(f"{key}: {found.dtype} of shape {tuple(found.shape)}, not a list of texts")
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise DataError(f"{key}: a text that cannot be written as UTF-8") from None
    return tuple(found)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name of the file before errors inside the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
