"""idx files, written byte by byte from the format's description."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_set(folder: Path, style: str = "{part}-{kind}-idx{axes}-ubyte", packed: bool = False) -> dict:
    """A set of 7 training and 5 test images in the four customary files; returns its arrays."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 7), ("t10k", 5)):
        arrays[part, "images"] = rng.integers(0, 256, (count, 6, 4), dtype=np.uint8)
        arrays[part, "labels"] = rng.integers(0, 10, count, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for (part, kind), array in arrays.items():
        name = style.format(part=part, kind=kind, axes=array.ndim)
        data = gzip.compress(idx_bytes(array)) if packed else idx_bytes(array)
        (folder / (name + ".gz" * packed)).write_bytes(data)
    return arrays
