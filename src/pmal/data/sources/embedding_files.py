"""Embeddings of another model and their labels, in one `.npz`, `.safetensors` or Parquet file.

| | embeddings (N, D) | labels | images, optional |
|---|---|---|---|
| training part | `embeddings` | `labels` | `files` |
| test part, optional | `test_embeddings` | `test_labels` | `test_files` |

The other names that `rows/table.py` lists are accepted as well, and `embedding`, `label`, `file` for columns.

Labels are integers or texts. `class_names`, a list of texts, is optional: integers are positions in it.
Without it, classes are called by their texts or numbers. In Parquet the column `split` may also mark the
rows of the test part. Images are only shown to the user: a path is relative to the folder of the file.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pmal.data.rows.class_labels import Names, class_indices, only_present
from pmal.data.rows.formats import read_entries
from pmal.data.rows.table import EMBEDDINGS, FILES, LABELS, either, naming, row_store, texts
from pmal.data.samples import Ids, Samples, Source, VectorStore
from pmal.data.sources.parquet import checked_splits, split_rows
from pmal.errors import DataError

if TYPE_CHECKING:
    from pmal.data.rows.formats import Entry

TEST = "test_"
_KNOWN = re.compile(f"({TEST})?({'|'.join((*EMBEDDINGS, *LABELS, *FILES))})|z_[0-9]+|class_names|split")

Part = tuple[VectorStore, str, "Entry"]
"""Embeddings, and the name and the content of their labels."""


def open_embeddings(path: str | Path) -> Source:
    """Return the data set in a file of embeddings.

    Raises:
        DataError: the file cannot be read, or its entries do not fit together.
    """
    path = Path(path)
    entries, _ = read_entries(path, _KNOWN)
    with naming(path):
        parts = _parts(entries, path)
        labels, names = _classes(parts, texts(entries, "class_names"))
        samples = [Samples.whole(store, own, names) for (store, _, _), own in zip(parts, labels, strict=True)]
        splits = texts(entries, "split")
    if splits is not None:
        return _by_split(path, samples, splits)
    return Source(path.stem, samples[0], samples[1] if len(samples) == 2 else None)


def _parts(entries: Mapping[str, "Entry"], path: Path) -> list[Part]:
    """Return the training part, and the test part if there is one."""
    has_test = any(name.startswith(TEST) for name in entries)
    found = []
    for part in ("", TEST) if has_test else ("",):
        store = row_store(entries, path, part)
        key = either(entries, *(part + name for name in LABELS))
        if key is None:
            raise DataError(f"no '{part}labels' in it: add the class of each row, integers or texts")
        found.append((store, key, entries[key]))
    widths = [store.vectors.shape[1] for store, _, _ in found]
    if widths[0] != widths[-1]:
        raise DataError(
            f"embeddings of {widths[0]} numbers, but {widths[1]} in the test part: embed both alike"
        )
    return found


def _classes(parts: Sequence[Part], names: Names) -> tuple[list[Ids], tuple[str, ...]]:
    """Return the class of each row, part by part, and the names of all classes that occur."""
    named = [given for _, _, given in parts if isinstance(given, list)]
    if names is None and 0 < len(named) < len(parts):
        raise DataError("labels are numbers in one part and texts in the other: write both alike")
    if names is None and named:
        names = tuple(sorted({name for given in named for name in given}))
    _check_names(names or ())
    labels = [class_indices(given, names, None, key)[0] for _, key, given in parts]
    for (store, key, _), own in zip(parts, labels, strict=True):
        if len(own) != len(store):
            raise DataError(f"{key}: {len(own)} labels for {len(store)} rows: every row needs exactly one")
    joined_N, present = only_present(np.concatenate(labels), names, parts[0][1])
    if present is None:
        present = tuple(map(str, range(int(joined_N.max()) + 1)))
    return np.split(joined_N, np.cumsum([len(own) for own in labels])[:-1]), present


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not name.strip():
            raise DataError("a class without a name: write a text for each class")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError("a class name that cannot be written as UTF-8") from None


def _by_split(path: Path, samples: Sequence[Samples], splits: tuple[str, ...]) -> Source:
    """Return the rows of one table as two parts, which share it: a row keeps its position."""
    whole = samples[0]
    if len(samples) == 2:
        raise DataError(f"{path}: both split and {TEST}embeddings: remove one of them")
    if len(splits) != len(whole):
        raise DataError(f"{path}: split: {len(splits)} entries for {len(whole)} rows: write one for each")
    train, test = split_rows(checked_splits(splits, path), path)
    return Source(path.stem, whole.at(train), None if test is None else whole.at(test))
