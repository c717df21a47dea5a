"""Image files given by a user, found and decoded block by block. Imports no torch."""

import math
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmal._runtime.progress import Advance, Display
from pmal.data.decoding.fitting import ImageShape, read_fitted
from pmal.data.samples import Pixels, Samples
from pmal.data.sources.folder import FileStore, list_files
from pmal.errors import DataError

BLOCK_IMAGES, BLOCK_BYTES = 1024, 1 << 28
"""Limits of a block: large enough to give every core work, small enough to fit in memory with any model."""

ARRAY_FILES = (".npz", ".parquet", ".safetensors")

Entry = dict[str, Any]


@dataclass(frozen=True)
class BadFile:
    """A file or row that has no answer, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ReadBlock:
    """Images uint8 (B, C, H, W) of the B files that could be read, and the files that could not."""

    files: list[str]
    images: Pixels
    bad: list[BadFile]


def find_files(paths: Sequence[str]) -> tuple[list[str], list[BadFile]]:
    """Return all image files that paths name, and the paths that cannot be used.

    Folders are searched as a data set of class folders is.
    """
    files: list[str] = []
    bad = []
    for path in paths:
        try:
            files += _files_at(path)
        except OSError as error:
            bad.append(BadFile(path, error.strerror or str(error)))
        except DataError as error:
            bad.append(BadFile(path, str(error)))
    return files, bad


def read_images(
    files: Sequence[str], shape: ImageShape, advance: Advance | None = None
) -> Iterator[ReadBlock]:
    """Yield the files block by block, decoded to (channels, size, size)."""
    count = max(1, min(BLOCK_IMAGES, BLOCK_BYTES // math.prod(shape.of_tensor)))
    for start in range(0, len(files), count):
        block = files[start : start + count]
        samples = Samples.whole(FileStore("", block), np.zeros(len(block), np.int64), ("",))
        images, readable, quarantine = read_fitted(samples, shape, advance=advance)
        bad = [BadFile(block[sample.id], sample.reason) for sample in quarantine]
        yield ReadBlock([block[row] for row in readable.ids.tolist()], images, bad)


def answer_blocks(
    files: Sequence[str],
    shape: ImageShape,
    errors: list[BadFile],
    display: Display,
    answer: Callable[[Pixels, list[str]], list[Entry]],
) -> Generator[list[Entry], None, None]:
    """Yield answers block by block, in the order of the files.

    Args:
        files: image files.
        shape: what the model takes.
        errors: files that cannot be read are added to it.
        display: shows the progress.
        answer: returns the answers for images and their names.
    """
    with display.stage("predicting", len(files), "images") as advance:
        for block in read_images(files, shape, advance):
            errors += block.bad
            if block.files:
                yield answer(block.images, block.files)


def _files_at(path: str) -> list[str]:
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode) and path.lower().endswith(ARRAY_FILES):
        raise DataError("a file of arrays, and this model takes images: name image files, or another model")
    if stat.S_ISREG(mode):
        return [path]
    if not stat.S_ISDIR(mode):
        raise DataError("neither a file nor a folder")
    found = [os.path.join(path, file) for file in list_files(path)]
    if not found:
        raise DataError("no images in this folder")
    return found
