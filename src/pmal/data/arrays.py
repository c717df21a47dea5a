"""What Python code hands over, arrays or file names, as the store that a source would give.

Nothing is changed in place. Every refusal names the sample or the shape, and the fix.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pmal.data.conversions import as_array, single_precision
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.data.feeding.workers import Plan
from pmal.data.samples import NOT_FINITE, ArrayStore, Pixels, PixelStore, Samples, VectorStore
from pmal.data.sources.folder import FileStore
from pmal.errors import DataError

NAME = "X"
_TO_PIXELS = "pass uint8 pixels, from 0 to 1 as (255 * X).round().astype('uint8')"


class ReadSamples:
    """Samples read batch by batch, as a model asks for them. One that cannot be read is an error here."""

    def __init__(self, samples: Samples, shape: ImageShape, device: torch.device) -> None:
        self.samples, self.shape, self.device = samples, shape, device

    def __len__(self) -> int:
        return len(self.samples)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        for positions in plan:
            batch = self.samples.at(positions.numpy())
            loaded = load_images(batch, self.shape)
            if loaded.quarantine:
                bad = loaded.quarantine[0]
                raise DataError(f"{bad.name}: {bad.reason}")
            yield loaded.images.to(self.device)

    def fingerprint(self) -> str:
        return ""


def are_rows(values: Any) -> bool:
    """Return whether this is a table, a row for each sample, and so no images.

    >>> are_rows([[0.5, 1.0], [2.0, 3.0]]), are_rows(["a.jpg"])
    (True, False)
    """
    if isinstance(values, str | os.PathLike):
        return False
    try:
        return as_array(values, NAME).ndim == 2
    except DataError:
        return False


def image_store(images: Any, origin: str = NAME) -> PixelStore:
    """Return a store of images (N, H, W) or (N, H, W, C) of uint8, or of a list of paths of image files."""
    paths = _paths(images)
    return ArrayStore(origin, _pixels(images)) if paths is None else FileStore("", paths)


def vector_store(vectors: Any, origin: str = NAME) -> VectorStore:
    """Return a store of embeddings (N, D), kept in single precision; rows of a file stay as they are."""
    if isinstance(vectors, VectorStore):
        return vectors
    array = as_array(vectors, NAME)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        one = ": one sample? pass X[None]" if array.ndim == 1 and array.dtype.kind in "fiu" else ""
        fix = one or ": encoder='precomputed' takes embeddings, numbers of shape (N, D)"
        raise DataError(f"{NAME} is {array.dtype} of shape {array.shape}{fix}")
    store = VectorStore(origin, single_precision(array))
    bad = np.flatnonzero(~store.finite(np.arange(len(store))))
    if len(bad):
        count = f"({len(bad)} such samples)"
        raise DataError(f"{NAME}[{bad[0]}] has {NOT_FINITE} {count}: leave them out or embed again")
    return store


def _paths(images: Any) -> list[str] | None:
    """Return the paths of a list of them; None for anything else."""
    if isinstance(images, str | os.PathLike):
        raise DataError(f"{NAME} is one path: pass a list, [{str(images)!r}]")
    given = images
    if hasattr(images, "tolist") and np.asarray(images).dtype.kind in "OU":  # also a column of a table
        given = np.asarray(images).tolist()
    if not isinstance(given, list | tuple) or not any(
        isinstance(entry, str | os.PathLike) for entry in given
    ):
        return None
    for place, entry in enumerate(given):
        if not isinstance(entry, str | os.PathLike):
            raise DataError(
                f"{NAME}[{place}] is a {type(entry).__name__}: in a list of paths, pass paths only"
            )
    return [os.fspath(entry) for entry in given]


def _pixels(images: Any) -> Pixels:
    array = as_array(images, NAME)
    shape = f"{NAME} is {array.dtype} of shape {array.shape}"
    if array.ndim == 2 and array.size:
        raise DataError(f"{shape}: one image? pass X[None]. Embeddings go with encoder='precomputed'")
    if array.ndim == 3 and array.shape[2] in (1, 3):
        raise DataError(f"{shape}: one image? pass X[None]. Images are (N, H, W) or (N, H, W, C)")
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        raise DataError(f"{shape}: channels come last here: pass X.transpose(0, 2, 3, 1)")
    if not array.size or not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))):
        raise DataError(f"{shape}: pass images of shape (N, H, W) or (N, H, W, C) with C = 1 or 3")
    if array.dtype != np.uint8:
        raise DataError(
            f"{shape}: {_TO_PIXELS if array.dtype.kind == 'f' else 'pass uint8 pixels, 0 to 255'}"
        )
    pixels: Pixels = array[:, :, :, None] if array.ndim == 3 else array
    return pixels
