"""Embeddings of any model from one file: .npz, .safetensors or Parquet.

| entry | what it is |
|---|---|
| `z_0`, `z_1`, ... | embeddings (N, D) of each space; or `embeddings`, `embedding`, `features`, `z` |
| `W_0`, `W_1`, ... | class weights (K, D) of the head that reads them (`W` for a single space); all or none |
| `b_0`, `b_1`, ... | its biases (K,), optional |
| `labels` or `label` | class of each sample: row of the head, or the class's name |
| `class_names` | names of the head's rows, optional; without it, names are sorted to match the rows |
| `ids` or `id` | a number of its own for each sample, optional; without it, its row |
| `files`, `file`, `paths` or `path` | where each sample's image is found, optional |

In Parquet the embeddings are columns of lists; heads and class names stand in the schema's metadata, as JSON.
In safetensors, which holds no texts, `paths`, `labels` and `class_names` may stand in the metadata, as JSON.
Without heads, classes are those that occur, in the order of their numbers or names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pmal.data.conversions import floats
from pmal.data.rows.class_labels import class_indices, only_present
from pmal.data.rows.formats import read_entries
from pmal.data.rows.table import EMBEDDINGS, FILES, LABELS, either, embedding_array, naming, texts
from pmal.errors import DataError
from pmal.mining._arrays import check_ids, check_names, finite_rows, first, same_length

if TYPE_CHECKING:
    from pmal.data.rows.formats import Entry

_LARGEST = 1e300
"""Differences of numbers below this are finite."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Samples in the order of their ids. Tensors on the CPU."""

    z: tuple[Tensor, ...]
    """Embeddings (N, D_u) in each space, float32 or float64."""
    heads: tuple[tuple[Tensor, Tensor | None], ...]
    """Class weights (K, D_u) and biases (K,) of each space; empty if the file has none."""
    labels: Tensor
    """Class of each sample (N,)."""
    num_classes: int
    class_names: tuple[str, ...] | None
    ids: Tensor
    paths: tuple[str, ...] | None
    ignored: tuple[str, ...]
    """What else the file holds."""


def read_embeddings(path: str | PathLike[str]) -> Embeddings:
    """Read a file of embeddings; everything wrong with it is an error that names the entry and the sample."""
    path = Path(path)
    entries, ignored = read_entries(path)
    with naming(path):
        layout = _layout(entries, ignored)
        spaces = tuple(_embeddings(entries.pop(z), z) for z, _, _ in layout)
        for (name, _, _), z_ND in zip(layout, spaces, strict=True):
            same_length(z_ND, len(spaces[0]), name)
        heads = tuple(_head(entries, W, b) for _, W, b in layout if W is not None)
        _check_heads(layout, spaces, heads)
        count, num_rows = len(spaces[0]), len(heads[0][0]) if heads else None
        labels_N, names = _labels(entries, count, num_rows)
        ids_N, paths = _ids(entries, count), _paths(entries, count)
    order = ids_N.argsort()
    if not torch.equal(order, torch.arange(count)):
        spaces = tuple(z_ND[order] for z_ND in spaces)
        paths = None if paths is None else tuple(paths[i] for i in order.tolist())
    num_classes = num_rows or int(labels_N.max()) + 1
    return Embeddings(spaces, heads, labels_N[order], num_classes, names, ids_N[order], paths, tuple(ignored))


def _layout(
    names: Mapping[str, "Entry"], others: Sequence[str] = ()
) -> list[tuple[str, str | None, str | None]]:
    """Return the names of embeddings, weights and biases of each space, if they belong together."""
    single = [name for name in EMBEDDINGS if name in names]
    numbers = sorted(int(name[2:]) for name in names if name.startswith("z_"))
    if len(single) + bool(numbers) > 1:
        given = ", ".join([*single, *(f"z_{u}" for u in numbers)])
        raise DataError(f"both {given}: call the spaces z_0, z_1, ...")
    if not single and not numbers:
        found = ", ".join([*names, *others]) or "nothing"
        raise DataError(f"no embeddings: call them z_0, z_1, ...; it has: {found}")
    if numbers != list(range(len(numbers))):
        given = ", ".join(f"z_{u}" for u in numbers)
        raise DataError(f"embeddings {given}: number the spaces from 0, without gaps")
    suffixes = [f"_{u}" for u in numbers] or [""]
    _check_counterparts(names, suffixes)
    return [
        (
            single[0] if single else f"z{suffix}",
            f"W{suffix}" if f"W{suffix}" in names else None,
            f"b{suffix}" if f"b{suffix}" in names else None,
        )
        for suffix in suffixes
    ]


def _check_counterparts(names: Mapping[str, "Entry"], suffixes: Sequence[str]) -> None:
    for name in names:
        if name[0] in "Wb" and name[1:] not in suffixes:
            raise DataError(f"{name}: there is no z{name[1:]} that it belongs to")
        if name[0] == "b" and f"W{name[1:]}" not in names:
            raise DataError(f"{name}: a bias without class weights W{name[1:]}")
    without = [suffix for suffix in suffixes if f"W{suffix}" not in names]
    if without and len(without) < len(suffixes):
        raise DataError(
            f"z{without[0]} has no class weights W{without[0]}, others have theirs: add it, or leave all "
            "of them out, and heads are fitted"
        )


def _embeddings(entry: "Entry", name: str) -> Tensor:
    z_ND = floats(embedding_array(entry, name), name, 2)
    large_N = finite_rows(z_ND, name) > _LARGEST
    if large_N.any():
        raise DataError(f"{name}: sample {first(large_N)} has numbers beyond {_LARGEST:g}: scale them down")
    return z_ND


def _head(entries: dict[str, "Entry"], weight: str, bias: str | None) -> tuple[Tensor, Tensor | None]:
    W_KD = _numbers(entries[weight], weight, 2)
    return W_KD, None if bias is None else _numbers(entries[bias], bias, 1)


def _numbers(entry: "Entry", name: str, dimensions: int) -> Tensor:
    if isinstance(entry, list) or (isinstance(entry, Tensor) and entry.is_complex()):
        raise DataError(f"{name}: expected real numbers")
    tensor = floats(entry, name, dimensions)
    if not tensor.isfinite().all():
        raise DataError(f"{name}: NaN or infinite values: export the head again")
    return tensor


def _check_heads(
    layout: Sequence[tuple[str, str | None, str | None]],
    spaces: Sequence[Tensor],
    heads: Sequence[tuple[Tensor, Tensor | None]],
) -> None:
    for (z, W, b), z_ND, (W_KD, b_K) in zip(layout, spaces, heads, strict=False):
        if W_KD.shape[1] != z_ND.shape[1]:
            raise DataError(
                f"{W}: {W_KD.shape[1]} channels, but {z} has {z_ND.shape[1]}: weights are (classes, channels)"
            )
        if len(W_KD) != len(heads[0][0]):
            raise DataError(f"{W}: {len(W_KD)} classes, but {layout[0][1]} has {len(heads[0][0])}")
        if b_K is not None and len(b_K) != len(W_KD):
            raise DataError(f"{b}: {len(b_K)} biases for {len(W_KD)} classes")
    if heads and len(heads[0][0]) < 2:
        raise DataError(f"{layout[0][1]}: a head with 1 class: two classes or more are needed")


def _labels(
    entries: Mapping[str, "Entry"], count: int, rows: int | None
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return the class of each sample, and the names of the classes."""
    key = either(entries, *LABELS)
    if key is None:
        raise DataError("no labels: add the class of each sample as 'labels'")
    given = entries[key]
    if isinstance(given, list):
        texts(entries, key)
    labels_N, names = class_indices(given, texts(entries, "class_names"), rows, key)
    same_length(torch.from_numpy(labels_N), count, key)
    if rows is None:
        labels_N, names = only_present(labels_N, names, key)
    return torch.from_numpy(labels_N), names


def _ids(entries: Mapping[str, "Entry"], count: int) -> Tensor:
    key = either(entries, "ids", "id")
    given = None if key is None else entries[key]
    if isinstance(given, list):
        raise DataError(f"{key}: texts: ids are whole numbers, texts may be given as 'paths'")
    return check_ids(given, count)


def _paths(entries: Mapping[str, "Entry"], count: int) -> tuple[str, ...] | None:
    key = either(entries, *FILES)
    paths = None if key is None else texts(entries, key)
    check_names(paths, count, key or "")
    return paths
