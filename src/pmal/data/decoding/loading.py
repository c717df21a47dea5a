"""Loading of samples as image tensors. Unreadable samples are set aside with a reason; ids never shift.

A set that fits into memory is loaded at once (`load_images`). A larger one is first checked in full
(`verify_images`) and then streamed (`SampleDataset`): an image that fails only then has changed on disk.
Both give the same pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from pmal._runtime.progress import Advance
from pmal.data.decoding.decode import verify
from pmal.data.decoding.fitting import (
    BadSample,
    ImageShape,
    fitting_reader,
    listed,
    positions_without,
    read_fitted,
    try_all,
    try_each,
)
from pmal.data.feeding.workers import Workers
from pmal.data.rows.table import check_width
from pmal.data.samples import (
    NOT_FINITE,
    ArrayStore,
    BadImage,
    EncodedStore,
    Samples,
    VectorStore,
    evenly,
)
from pmal.errors import DataError, UsageError

MAX_UNREADABLE = 0.2
MANY_IMAGES = 10_000
"""From this many images on, verify in processes: half of the time is spent in the interpreter."""
MIXED_SIZE = 64
"""The side to which images of different sizes are scaled by default."""


@dataclass(frozen=True)
class Loaded:
    """Images (M, C, H, W) uint8 of the M readable samples, and the samples that were not readable.

    Embeddings in place of images are (M, D, 1, 1) float32.
    """

    images: torch.Tensor
    samples: Samples
    quarantine: list[BadSample]


def load_images(
    samples: Samples, shape: ImageShape, *, workers: int = 0, advance: Advance | None = None
) -> Loaded:
    """Decode every sample to the shape. Embeddings are one pixel of as many channels as they are wide.

    Raises:
        UsageError: the samples do not fit the shape.
    """
    if isinstance(samples.store, VectorStore):
        return _load_rows(samples, samples.store, shape, advance)
    held = _already_fitted(samples, shape)
    if held is not None:
        if advance:
            advance(len(samples))
        return Loaded(held, samples, [])
    if shape.channels not in (1, 3):
        numbers = f"embeddings of {shape.channels} numbers"
        raise UsageError(f"the model takes {numbers}, not images: see docs/how-to/embeddings.md")
    fitted, readable, bad = read_fitted(samples, shape, workers, advance)
    return Loaded(torch.from_numpy(fitted), readable, bad)


def verify_images(
    samples: Samples, *, workers: int = 0, advance: Advance | None = None
) -> tuple[Samples, list[BadSample]]:
    """Check every sample once, keep no pixels, and return the readable samples and the others.

    `workers` are threads or, for very many images, processes; 0: one per usable CPU core.
    """
    if len(samples) < MANY_IMAGES or not isinstance(samples.store, EncodedStore):
        bad = try_all(len(samples), _check_of(samples), workers, advance)
    else:
        bad = _verify_many(samples, workers, advance)
    return samples.at(positions_without(bad, len(samples))), listed(samples, bad)


def probe_shape(samples: Samples, limit: int = 64) -> tuple[int, int]:
    """Return the side and the channels to load with, from up to `limit` evenly spaced samples.

    The side is that of the images if all are squares of one size, else 64. There is one channel only if all
    images are gray.

    Raises:
        DataError: none of these samples is readable.
    """
    positions = evenly(len(samples), limit)
    shapes, failures = [], []
    for position in positions.tolist():
        try:
            shapes.append(samples.read(position).shape)
        except BadImage as reason:
            failures.append(f"{samples.name(position)}: {reason}")
    if not shapes:
        first = failures[0] if failures else "there are no samples"
        raise DataError(f"none of {len(positions)} probed images is readable ({first})")
    sides = {side for height, width, _ in shapes for side in (height, width)}
    channels = 1 if all(shape[2] == 1 for shape in shapes) else 3
    return (sides.pop() if len(sides) == 1 else MIXED_SIZE), channels


def check_quarantine(quarantine: Sequence[BadSample], total: int, where: str, unit: str = "images") -> None:
    """Reject a part with too many unreadable samples: then the cause is not a few bad files.

    Raises:
        DataError: more than a fifth are unreadable. The message begins with `where`, and calls them `unit`.
    """
    if len(quarantine) > MAX_UNREADABLE * total:
        first = quarantine[0]
        raise DataError(
            f"{where}: {len(quarantine)} of {total} {unit} unreadable (first: {first.name}: {first.reason}), "
            f"more than {100 * MAX_UNREADABLE:g} %: repair or remove them"
        )


def _check_of(samples: Samples) -> Callable[[int], None]:
    """Return a function that raises `BadImage` if the image at a position cannot be read."""
    store, ids = samples.store, samples.ids
    if isinstance(store, EncodedStore):
        return lambda position: verify(store.encoded(int(ids[position])))

    def read(position: int) -> None:
        store.read(int(ids[position]))

    return read


def _verify_many(samples: Samples, workers: int, advance: Advance | None) -> list[tuple[int, str]]:
    bad: list[tuple[int, str]] = []
    plan = torch.split(torch.arange(len(samples)), 256)
    for positions, found in zip(plan, Workers(_BadImages(samples), workers).results(plan), strict=True):
        bad += found
        if advance:
            advance(len(positions))
    return bad


class _BadImages(Dataset[list[tuple[int, str]]]):
    """Positions of the unreadable images of a batch, with the reasons."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, positions: list[int]) -> list[tuple[int, str]]:
        return try_each(positions, _check_of(self.samples))


class SampleDataset(Dataset[torch.Tensor]):
    """Verified samples, decoded in worker processes: (C, H, W) uint8 each, or whole batches of them."""

    def __init__(self, samples: Samples, shape: ImageShape) -> None:
        self.samples, self.shape = samples, shape

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> torch.Tensor:
        """Return a batch (B, C, H, W), which a worker sends as one piece. torch calls it if it exists."""
        images = np.empty((len(positions), *self.shape.of_tensor), dtype=np.uint8)
        read = fitting_reader(self.samples, self.shape)
        for place, position in enumerate(positions):
            try:
                images[place] = read(position).transpose(2, 0, 1)
            except BadImage as reason:
                name = self.samples.name(position)
                raise DataError(f"{name}: {reason}; it was readable when the run began") from reason
        return torch.from_numpy(images)


def _load_rows(samples: Samples, store: VectorStore, shape: ImageShape, advance: Advance | None) -> Loaded:
    """Return a copy of the rows with finite numbers; set the others aside."""
    if shape.size != 1:
        wanted = f"images of {shape.size} px"
        raise UsageError(f"{store.origin}: embeddings, but the model takes {wanted}: pass images")
    check_width(store, shape.channels)
    finite = store.finite(samples.ids)
    bad = [(position, NOT_FINITE) for position in np.flatnonzero(~finite).tolist()]
    readable = samples.at(finite) if bad else samples
    if advance:
        advance(len(samples))
    rows = torch.from_numpy(store.vectors[readable.ids])[:, :, None, None]
    return Loaded(rows, readable, listed(samples, bad))


def _already_fitted(samples: Samples, shape: ImageShape) -> torch.Tensor | None:
    """Return a copy of pixels in memory that fit the model already; None if something must be decoded."""
    store = samples.store
    if isinstance(store, ArrayStore) and store.pixels.shape[1:] == (shape.size, shape.size, shape.channels):
        return torch.from_numpy(store.pixels[samples.ids]).permute(0, 3, 1, 2).contiguous()
    return None
