"""Answers for what a user has named, in the form the model takes: images, or rows of embeddings. No torch."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmal._runtime.progress import Display
from pmal.data.decoding.fitting import ImageShape
from pmal.data.samples import NOT_FINITE, Vectors, VectorStore
from pmal.errors import DataError
from pmal.serving.answers.image_files import BadFile, Entry, answer_blocks, find_files

BLOCK_ROWS = 4096
KINDS = ".npz, .parquet or .safetensors"


def answer_paths(
    paths: Sequence[str],
    shape: ImageShape,
    errors: list[BadFile],
    display: Display,
    answer: Callable[[Any, list[str]], list[Entry]],
) -> Generator[list[Entry], None, None]:
    """Return answers block by block, for images, or for rows if the side of an image is 1.

    Args:
        paths: files and folders.
        shape: what the model takes.
        errors: what has no answer is added to it.
        display: shows the progress.
        answer: returns the answers for images or embeddings and their names.
    """
    if shape.size == 1:
        return answer_rows(paths, shape.channels, errors, display, answer)
    files, bad = find_files(paths)
    errors += bad
    return answer_blocks(files, shape, errors, display, answer)


def answer_rows(
    paths: Sequence[str],
    width: int,
    errors: list[BadFile],
    display: Display,
    answer: Callable[[Vectors, list[str]], list[Entry]],
) -> Generator[list[Entry], None, None]:
    """Yield answers block by block, in the order of files and rows.

    Args:
        paths: files of embeddings.
        width: channels that the model takes.
        errors: what has no answer is added to it.
        display: shows the progress.
        answer: gets embeddings (B, D, 1, 1), as the model takes them, and the names of their rows.
    """
    stores = [store for path in paths if (store := _open(path, width, errors))]
    with display.stage("predicting", sum(map(len, stores)), "rows") as advance:
        for store in stores:
            for start in range(0, len(store), BLOCK_ROWS):
                rows = np.arange(start, min(start + BLOCK_ROWS, len(store)))
                finite = store.finite(rows)
                errors += [BadFile(store.name(row), NOT_FINITE) for row in rows[~finite].tolist()]
                sound = rows[finite]
                advance(len(rows))
                if len(sound):
                    names = [store.name(row) for row in sound.tolist()]
                    yield answer(store.vectors[sound][:, :, None, None], names)


def _open(path: str, width: int, errors: list[BadFile]) -> VectorStore | None:
    """Return the rows of a file. None: it has none that the model takes."""
    from pmal.data.rows.formats import is_embedding_file
    from pmal.data.rows.table import check_width, read_rows

    try:
        if Path(path).is_file() and not is_embedding_file(Path(path)):
            raise DataError(f"{path}: this model takes embeddings, not images: name a {KINDS} file")
        store = read_rows(Path(path))
        check_width(store, width)
    except DataError as error:
        errors.append(BadFile(path, str(error).removeprefix(f"{path}: ")))
        return None
    return store
