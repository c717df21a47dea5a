"""From samples to image tensors. What cannot be read is set aside with its reason; no id ever shifts.

A set that fits into memory is loaded at once (`load_images`). A larger one is checked in full beforehand
(`verify_images`) and then streamed (`SampleDataset`): an image that fails only then has changed on disk.
Both give the same pixels.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from pmal._runtime.progress import Advance
from pmal.data.decode import decode_fitted, fit_to, verify
from pmal.data.samples import ArrayStore, BadImage, EncodedStore, Ids, Pixels, Samples, VectorStore
from pmal.errors import DataError, UsageError

MAX_UNREADABLE = 0.2
MIXED_SIZE = 64
"""The side that images of different sizes are brought to unless the user says another."""

_CHUNK = 64


@dataclass(frozen=True)
class BadSample:
    """A sample that is left out, and why."""

    id: int
    name: str
    reason: str


@dataclass(frozen=True)
class Loaded:
    """Images (M, C, H, W) uint8 of the M readable samples, and the samples that were not readable.

    Embeddings in the place of images are (M, D, 1, 1) float32.
    """

    images: torch.Tensor
    samples: Samples
    quarantine: list[BadSample]


def load_images(
    samples: Samples, *, size: int, channels: int, workers: int = 0, advance: Advance | None = None
) -> Loaded:
    """Decode every sample to (channels, size, size). `workers`: threads, 0 for one per usable CPU core."""
    held = _already_fitted(samples, size, channels)
    if held is not None:
        if advance:
            advance(len(samples))
        return Loaded(held, samples, [])
    if channels not in (1, 3):
        raise UsageError(
            f"the model takes embeddings of {channels} numbers, not images: see docs/estimator.md"
        )
    fitted = np.empty((len(samples), channels, size, size), dtype=np.uint8)
    read = _fitting_reader(samples, size, channels)

    def keep(position: int) -> None:
        fitted[position] = read(position).transpose(2, 0, 1)

    bad = _try_all(len(samples), keep, workers, advance)
    readable = _positions_without(bad, len(samples))
    return Loaded(
        torch.from_numpy(fitted[readable] if bad else fitted), samples.at(readable), _listed(samples, bad)
    )


def verify_images(
    samples: Samples, *, workers: int = 0, advance: Advance | None = None
) -> tuple[Samples, list[BadSample]]:
    """Check every sample once and keep nothing: the readable samples, and those that are not."""
    store, ids = samples.store, samples.ids
    encoded = store.encoded if isinstance(store, EncodedStore) else None

    def check(position: int) -> None:
        if encoded is None:
            store.read(int(ids[position]))
        else:
            verify(encoded(int(ids[position])))

    bad = _try_all(len(samples), check, workers, advance)
    return samples.at(_positions_without(bad, len(samples))), _listed(samples, bad)


def probe_shape(samples: Samples, limit: int = 64) -> tuple[int, int]:
    """Side and channels to load with, judged by up to `limit` evenly spaced samples.

    The side is that of the images where all are squares of one size, else 64. One channel only where all are
    gray.
    """
    positions = np.unique(np.linspace(0, len(samples) - 1, min(limit, len(samples))).round().astype(np.int64))
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


def check_quarantine(
    quarantine: Sequence[BadSample], total: int, where: str, max_share: float = MAX_UNREADABLE
) -> None:
    """Refuse a part of which too much is unreadable: then the cause is not a few bad files."""
    if len(quarantine) > max_share * total:
        first = quarantine[0]
        raise DataError(
            f"{where}: {len(quarantine)} of {total} images unreadable (first: {first.name}: {first.reason}), "
            f"more than {100 * max_share:g} %: repair or remove them"
        )


class SampleDataset(Dataset[torch.Tensor]):
    """Verified samples, decoded in worker processes: (C, H, W) uint8 each, or whole batches of them."""

    def __init__(self, samples: Samples, size: int, channels: int) -> None:
        self.samples = samples
        self.size = size
        self.channels = channels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> torch.Tensor:
        """(B, C, H, W), which a worker hands over as one piece. torch calls it where a dataset has it."""
        images = np.empty((len(positions), self.channels, self.size, self.size), dtype=np.uint8)
        read = _fitting_reader(self.samples, self.size, self.channels)
        for place, position in enumerate(positions):
            try:
                images[place] = read(position).transpose(2, 0, 1)
            except BadImage as reason:
                name = self.samples.name(position)
                raise DataError(f"{name}: {reason}; it was readable when the run began") from reason
        return torch.from_numpy(images)


def usable_cores() -> int:
    """CPU cores that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fitting_reader(samples: Samples, size: int, channels: int) -> Callable[[int], Pixels]:
    """From a position to the pixels (size, size, channels) there."""
    store, ids = samples.store, samples.ids
    if isinstance(store, EncodedStore):
        return lambda position: decode_fitted(store.encoded(int(ids[position])), size, channels)
    return lambda position: fit_to(store.read(int(ids[position])), size, channels)


def _already_fitted(samples: Samples, size: int, channels: int) -> torch.Tensor | None:
    """A copy of what is in memory as the model takes it; None where something has to be decoded."""
    store = samples.store
    if isinstance(store, VectorStore):
        return torch.from_numpy(store.vectors[samples.ids])[:, :, None, None]
    if isinstance(store, ArrayStore) and store.pixels.shape[1:] == (size, size, channels):
        return torch.from_numpy(store.pixels[samples.ids]).permute(0, 3, 1, 2).contiguous()
    return None


def _try_all(
    count: int, attempt: Callable[[int], None], workers: int, advance: Advance | None
) -> list[tuple[int, str]]:
    """Attempt every position; those that raised `BadImage`, in order, with its reason.

    Threads, because Pillow lets go of the interpreter while it decodes.
    """

    def go_through(start: int) -> list[tuple[int, str]]:
        bad = []
        for position in range(start, min(start + _CHUNK, count)):
            try:
                attempt(position)
            except BadImage as reason:
                bad.append((position, str(reason)))
        return bad

    found: list[tuple[int, str]] = []
    starts = range(0, count, _CHUNK)
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        for start, bad in zip(starts, pool.map(go_through, starts), strict=True):
            found += bad
            if advance:
                advance(min(_CHUNK, count - start))
    return found


def _positions_without(bad: list[tuple[int, str]], total: int) -> Ids:
    return np.delete(np.arange(total, dtype=np.int64), [position for position, _ in bad])


def _listed(samples: Samples, bad: list[tuple[int, str]]) -> list[BadSample]:
    return [BadSample(int(samples.ids[p]), samples.name(p), reason) for p, reason in bad]
