"""Images and labels as arrays in one `.npz`.

| | images | labels |
|---|---|---|
| training part | `x_train`, `train_images`, `images` or `X` | `y_train`, `train_labels`, `labels` or `y` |
| test part (optional) | `x_test` or `test_images` | `y_test` or `test_labels` |

Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3, as uint8 or as floats in 0..1. Labels are
integers from 0, (N,) or (N, 1). `class_names`, an array of strings, is optional: without it the classes are
called "0", "1", ... up to the largest label.
"""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.memory import check_expansion
from pmal.data.samples import ArrayStore, Ids, Pixels, Samples, Source
from pmal.errors import DataError, MissingFileError, first_line

_MOST_HEADER = 10_000
"""Bytes of a header, as numpy has it; numpy itself would read what the file declares before it looks."""
_MAX_CLASSES = 1_000_000
_TRAIN_KEYS = (("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels"), ("X", "y"))
_ROWS = ("embeddings", "labels")
"""Arrays of embeddings. `embedding_files.py` reads files that have them."""
_TEST_KEYS = (("x_test", "y_test"), ("test_images", "test_labels"))
BROKEN = (ValueError, OSError, EOFError, KeyError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file raises."""
Declared = tuple[int, "np.dtype[Any]"]
"""Bytes and type."""


def open_npz(path: str | Path) -> Source:
    """Return the data set in an .npz file."""
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    keys = declared_arrays(path)
    train_keys, test_keys = _pick(keys, _TRAIN_KEYS), _pick(keys, _TEST_KEYS)
    if train_keys is None:
        wanted = " or ".join(f"{images}/{labels}" for images, labels in [*_TRAIN_KEYS, _ROWS])
        raise DataError(f"{path}: needs the arrays {wanted}; it has: {', '.join(map(repr, keys)) or 'none'}")
    pairs = [train_keys] if test_keys is None else [train_keys, test_keys]
    wanted_keys = {key for pair in pairs for key in pair} | ({"class_names"} & set(keys))
    arrays = load_arrays(path, {key: keys[key] for key in sorted(wanted_keys)})
    labels = [_labels(arrays[label], f"{path}: {label}") for _, label in pairs]
    names = _class_names(arrays.get("class_names"), pairs, labels, path)
    parts = [
        _part(f"{path}: {image}", arrays[image], part_labels, names)
        for (image, _), part_labels in zip(pairs, labels, strict=True)
    ]
    return Source(path.stem, parts[0], parts[1] if len(parts) == 2 else None)


def _pick(keys: Mapping[str, Declared], pairs: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    return next(((images, labels) for images, labels in pairs if {images, labels} <= keys.keys()), None)


def declared_arrays(path: Path) -> dict[str, Declared]:
    """Return bytes and type of each array of the file; nothing but headers is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [file.removesuffix(".npy") for file in archive.namelist() if file.endswith(".npy")]
            return {name: _declared(archive, name) for name in names}
    except BROKEN as error:
        raise DataError(f"{path}: not readable as .npz ({first_line(error)})") from None


def load_arrays(path: Path, declared: Mapping[str, Declared]) -> dict[str, NDArray[Any]]:
    """Return some arrays of the file, if memory is there for what they declare."""
    check_expansion(sum(size for size, _ in declared.values()), path.stat().st_size, f"{path}: its arrays")
    return {name: _load(path, name) for name in declared}


def _declared(archive: zipfile.ZipFile, name: str) -> Declared:
    _check_header(archive, name)
    with archive.open(f"{name}.npy") as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        try:
            shape, _, dtype = read(member)
        except (TypeError, tokenize.TokenError) as error:  # numpy refuses most damaged headers itself
            raise ValueError(f"the header of {name} is damaged: {first_line(error)}") from None
    # Python integers: a declared shape may be beyond what int64 holds.
    return math.prod(map(int, shape)) * dtype.itemsize, dtype


def _check_header(archive: zipfile.ZipFile, name: str) -> None:
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        length = int.from_bytes(member.read(2 if version == (1, 0) else 4), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"the header of {name} declares {length:,} bytes")


def _load(path: Path, name: str) -> NDArray[Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[name]
            return array
    except BROKEN as error:
        raise DataError(f"{path}: array {name} is not readable ({first_line(error)})") from None


def _part(origin: str, images: NDArray[Any], labels: Ids, names: tuple[str, ...]) -> Samples:
    pixels = _pixels(images, origin)
    if len(pixels) != len(labels):
        raise DataError(f"{origin}: {len(pixels)} images, but {len(labels)} labels")
    return Samples.whole(ArrayStore(origin, pixels), labels, names)


def _pixels(images: NDArray[Any], origin: str) -> Pixels:
    """Return (N, H, W, C) uint8 from any of the accepted layouts."""
    if images.ndim == 3:
        images = images[:, :, :, None]
    elif images.ndim == 4 and images.shape[3] not in (1, 3) and images.shape[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
        shape = "x".join(map(str, images.shape))
        fix = ": call embeddings 'embeddings'" if images.ndim == 2 else ""
        raise DataError(
            f"{origin}: shape {shape} is not (N, H, W), (N, H, W, C) or (N, C, H, W), C = 1 or 3{fix}"
        )
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{origin}: {images.dtype} pixels: convert them to uint8 in 0..255")
    if not (images.min() >= 0 and images.max() <= 1):
        raise DataError(f"{origin}: float pixels outside 0..1 or not finite: convert them to uint8 in 0..255")
    pixels = np.empty(images.shape, dtype=np.uint8)
    for row, image in enumerate(images):
        pixels[row] = np.rint(image.astype(np.float64) * 255)
    return pixels


def _labels(labels: NDArray[Any], origin: str) -> Ids:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        shape = "x".join(map(str, labels.shape))
        raise DataError(f"{origin}: {labels.dtype} of shape {shape}, not integers of shape (N,) or (N, 1)")
    return labels.astype(np.int64)


def _class_names(
    given: NDArray[Any] | None, pairs: list[tuple[str, str]], labels: list[Ids], path: Path
) -> tuple[str, ...]:
    if given is not None and (given.ndim != 1 or given.dtype.kind != "U"):
        raise DataError(f"{path}: class_names is not a list of strings")
    count = _MAX_CLASSES if given is None else len(given)
    for (_, key), values in zip(pairs, labels, strict=True):
        wrong = np.flatnonzero((values < 0) | (values >= count))
        if wrong.size:
            raise DataError(f"{path}: {key}[{wrong[0]}] is {values[wrong[0]]}, not in 0..{count - 1}")
    if given is not None:
        return tuple(map(str, given))
    largest = max((int(values.max()) for values in labels if len(values)), default=-1)
    return tuple(map(str, range(largest + 1)))
