"""MNIST and its drop-in replacements: idx files, gzip or not.

An idx file is two zero bytes, a type code, the number of axes, each axis as a big-endian 32-bit number, then
the values. The header declares the size, so that no more than that is ever unpacked.
"""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pmal._runtime.memory import MOST_EXPANDS, check_memory
from pmal.data.samples import ArrayStore, Pixels, Samples, Source
from pmal.data.sources._refused import check_labels
from pmal.errors import DataError

_UNSIGNED_BYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"


def idx_names(part: str, kind: str, axes: int) -> tuple[str, ...]:
    """Return the names under which one idx file is found.

    >>> idx_names("train", "images", 3)[:2]
    ('train-images-idx3-ubyte', 'train-images-idx3-ubyte.gz')
    """
    stems = (f"{part}-{kind}-idx{axes}-ubyte", f"{part}-{kind}.idx{axes}-ubyte")
    return tuple(stem + suffix for stem in stems for suffix in ("", ".gz"))


def read_idx(path: Path) -> Pixels:
    """Return the array of unsigned bytes in an idx file; reject a file that is not what its header says."""
    try:
        packed_size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(2) != _GZIP_MAGIC:
                file.seek(0)
                return _read_stream(file, path, packed_size)
            file.seek(0)
            with gzip.open(file) as unpacked:
                return _read_stream(unpacked, path, packed_size * MOST_EXPANDS)
    except EOFError as error:
        raise DataError(f"{path}: cut off; fetch the file again") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error


def _read_stream(stream: BinaryIO | gzip.GzipFile, path: Path, most_bytes: int) -> Pixels:
    shape = _read_shape(stream, path)
    declared = math.prod(shape)
    if declared > most_bytes:
        raise DataError(f"{path}: cut off: the header declares {declared} values; fetch the file again")
    check_memory(declared, str(path))
    values = stream.read(declared)
    if len(values) < declared:
        raise DataError(f"{path}: cut off after {len(values)} of {declared} values; fetch the file again")
    if stream.read(1):
        raise DataError(f"{path}: holds more than the {declared} values it declares; fetch the file again")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _read_shape(stream: BinaryIO | gzip.GzipFile, path: Path) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or magic[3] not in (1, 3):
        raise DataError(f"{path}: not an idx file of images or labels (it begins with 0x{magic.hex()})")
    axes = stream.read(4 * magic[3])
    if len(axes) < 4 * magic[3]:
        raise DataError(f"{path}: cut off inside the header; fetch the file again")
    return tuple(int(axis) for axis in np.frombuffer(axes, dtype=">u4"))


def open_mnist(folder: Path, name: str, class_names: Sequence[str]) -> Source:
    """Return a training and a test part from the four customary files in one folder."""
    return Source(
        name,
        train=_read_part(folder, "train", tuple(class_names)),
        test=_read_part(folder, "t10k", tuple(class_names)),
    )


def _read_part(folder: Path, part: str, class_names: tuple[str, ...]) -> Samples:
    images_at = _find(folder, idx_names(part, "images", 3))
    labels_at = _find(folder, idx_names(part, "labels", 1))
    images, labels = read_idx(images_at), read_idx(labels_at)
    if images.ndim != 3 or labels.ndim != 1:
        wrong = images_at if images.ndim != 3 else labels_at
        raise DataError(f"{wrong}: images and labels are mixed up; fetch the file again")
    if not images.size:
        raise DataError(f"{images_at}: holds no images")
    if len(images) != len(labels):
        raise DataError(f"{labels_at}: {len(labels)} labels for {len(images)} images in {images_at.name}")
    check_labels(labels, len(class_names), str(labels_at))
    return Samples.whole(ArrayStore(str(images_at), images[..., np.newaxis]), labels, class_names)


def _find(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder}: {names[0]} is missing (also looked for {', '.join(names[1:])})")
