"""What every source is read into: labels and ids in memory, pixels on demand.

A sample's id is its row in the pixel store of its part (training or test). Subsets share the store, so an id
never shifts to a neighbor, whatever is left out on the way.
"""

import os
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.text import short_path

Pixels = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]

UNKNOWN_NAME = "unknown"
"""What an image of no known class is called."""


def evenly(count: int, most: int) -> Ids:
    """Return at most so many of the positions 0 .. count - 1, evenly spaced: the same ones every time.

    >>> evenly(10, 4).tolist(), evenly(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)


NOT_FINITE = "NaN or infinite values"
"""Why an embedding is left out."""


class BadImage(Exception):
    """One image cannot be decoded; the message is the reason, without the image's name."""


class PixelStore(Protocol):
    """Random access to images by row. Picklable, so that worker processes can read from a copy."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """Return what a person needs to find the image: its path, or the file and the place in it."""
        ...

    def read(self, row: int) -> Pixels:
        """Return pixels of shape (H, W, C) with C = 1 or 3. Raises `BadImage`."""
        ...


@runtime_checkable
class EncodedStore(PixelStore, Protocol):
    """A store whose images are encoded: of a large JPEG, no more is decoded than is needed."""

    def encoded(self, row: int) -> bytes:
        """Return the image as it is in its file. Raises `BadImage`."""
        ...


@dataclass(frozen=True)
class ArrayStore:
    """Images that are one array already, (N, H, W, C)."""

    origin: str
    pixels: Pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, row: int) -> str:
        return f"{self.origin}[{row}]"

    def read(self, row: int) -> Pixels:
        pixels: Pixels = self.pixels[row]
        return pixels


@dataclass(frozen=True)
class VectorStore:
    """Embeddings (N, D) from another model in the place of images: each is one pixel of D channels.

    They are in memory already, and are never read one by one: only their pictures are read, to be looked at.
    """

    origin: str
    vectors: Vectors
    pictures: EncodedStore | None = None
    """The image that each row was made of; None if nobody named them."""

    def __len__(self) -> int:
        return len(self.vectors)

    def name(self, row: int) -> str:
        return self.pictures.name(row) if self.pictures else f"{self.origin}[{row}]"

    def read(self, row: int) -> Pixels:
        return self._pictures().read(row)

    def encoded(self, row: int) -> bytes:
        """Return the picture as it is in its file. Raises `BadImage`."""
        return self._pictures().encoded(row)

    def finite(self, rows: Ids) -> NDArray[np.bool_]:
        """Return which of these rows have finite numbers only."""
        return np.asarray(np.isfinite(self.vectors[rows]).all(axis=1))

    def _pictures(self) -> EncodedStore:
        if self.pictures is None:
            raise BadImage("an embedding, which has no pixels")
        return self.pictures


@dataclass(frozen=True)
class Samples:
    """Labeled images: sample i is row `ids[i]` of the store and has class `class_names[labels[i]]`."""

    store: PixelStore
    ids: Ids
    labels: Ids
    class_names: tuple[str, ...]

    @classmethod
    def whole(cls, store: PixelStore, labels: NDArray[np.integer], class_names: tuple[str, ...]) -> "Samples":
        """Return all rows of a store, in its order."""
        return cls(store, np.arange(len(store), dtype=np.int64), labels.astype(np.int64), class_names)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unit(self) -> str:
        """What these are, in words that follow a number."""
        return "rows" if isinstance(self.store, VectorStore) else "images"

    def name(self, position: int) -> str:
        """Return what a person needs to find the sample."""
        return self.store.name(int(self.ids[position]))

    def name_in_source(self, position: int) -> str:
        """Return the name of a sample as it is kept in files: without the folders above its source."""
        return name_in_source(self.store, int(self.ids[position]))

    def read(self, position: int) -> Pixels:
        """Return the pixels of the sample. Raises `BadImage`."""
        return self.store.read(int(self.ids[position]))

    def at(self, positions: NDArray[np.integer] | NDArray[np.bool_]) -> "Samples":
        """Return the samples at these positions (or under this mask), with their ids and labels."""
        return Samples(self.store, self.ids[positions], self.labels[positions], self.class_names)

    def of_classes(self, classes: tuple[int, ...]) -> "Samples":
        """Return the samples of these classes, relabeled: class `classes[k]` becomes k.

        Order and ids are kept.
        """
        new_label = np.full(len(self.class_names), -1, dtype=np.int64)
        new_label[list(classes)] = np.arange(len(classes))
        relabeled = new_label[self.labels]
        keep = relabeled >= 0
        names = tuple(self.class_names[c] for c in classes)
        return Samples(self.store, self.ids[keep], relabeled[keep], names)


def name_in_source(store: PixelStore, row: int) -> str:
    """Return the name of an image without the folders above its source.

    Where the data lie concerns nobody to whom a model is given.
    """
    if isinstance(store, VectorStore) and store.pictures is not None:
        return name_in_source(store.pictures, row)
    name, root = store.name(row), getattr(store, "root", None)
    if root:
        return os.path.relpath(name, root)
    return short_path(name) if root == "" else os.path.basename(name)


@dataclass(frozen=True)
class Source:
    """A data set as found on disk."""

    name: str
    train: Samples
    test: Samples | None = None
    """None: the source has one part only, and a held-out share of it becomes the test part."""
    foreign: Samples | None = None
    """Test images from another set, all unknown (CIFAR-100 in CIFAR+N, the open set of ImageNet-LT)."""
    digits: bool = False
    """Images of digits: never flipped."""
    loose: tuple[str, ...] = ()
    """Files next to the class folders, which belong to no class and are left out."""
    faults: tuple[str, ...] = ()
    """What is wrong with its test part, if it was opened all the same to be checked."""
    ignored: tuple[str, ...] = ()
    """Files of desktops (Thumbs.db), which are no samples; listed if it was opened to be checked."""
