"""From samples to image tensors. What cannot be read is set aside with its reason; no id ever shifts.

A set that fits into memory is loaded at once (`load_images`). A larger one is checked in full beforehand
(`verify_images`) and then streamed (`SampleDataset`): an image that fails only then has changed on disk.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from pmal._runtime.progress import Advance
from pmal.data.decode import fit_to
from pmal.data.samples import ArrayStore, BadImage, Ids, Pixels, Samples, VectorStore
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
    """Decode every sample to (channels, size, size). `workers`: threads, 0 for one per CPU core."""
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

    def keep(position: int, pixels: Pixels) -> None:
        fitted[position] = fit_to(pixels, size, channels).transpose(2, 0, 1)

    bad = _read_all(samples, keep, workers, advance)
    readable = _positions_without(bad, len(samples))
    return Loaded(
        torch.from_numpy(fitted[readable] if bad else fitted), samples.at(readable), _listed(samples, bad)
    )


def verify_images(
    samples: Samples, *, workers: int = 0, advance: Advance | None = None
) -> tuple[Samples, list[BadSample]]:
    """Decode every sample once and keep nothing: the readable samples, and those that are not."""
    bad = _read_all(samples, lambda position, pixels: None, workers, advance)
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
    """Verified samples, decoded one by one in worker processes: (C, H, W) uint8."""

    def __init__(self, samples: Samples, size: int, channels: int) -> None:
        self.samples = samples
        self.size = size
        self.channels = channels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> torch.Tensor:
        try:
            pixels = self.samples.read(position)
        except BadImage as reason:
            name = self.samples.name(position)
            raise DataError(f"{name}: {reason}; it was readable when the run began") from reason
        fitted = fit_to(pixels, self.size, self.channels).transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(fitted))


def _already_fitted(samples: Samples, size: int, channels: int) -> torch.Tensor | None:
    """A copy of what is in memory as the model takes it; None where something has to be decoded."""
    store = samples.store
    if isinstance(store, VectorStore):
        return torch.from_numpy(store.vectors[samples.ids])[:, :, None, None]
    if isinstance(store, ArrayStore) and store.pixels.shape[1:] == (size, size, channels):
        return torch.from_numpy(store.pixels[samples.ids]).permute(0, 3, 1, 2).contiguous()
    return None


def _read_all(
    samples: Samples, use: Callable[[int, Pixels], None], workers: int, advance: Advance | None
) -> list[tuple[int, str]]:
    """Hand each readable sample to `use`; the positions of the others, in order, with their reasons.

    Threads, because Pillow lets go of the interpreter while it decodes.
    """

    def read(start: int) -> list[tuple[int, str]]:
        bad = []
        for position in range(start, min(start + _CHUNK, len(samples))):
            try:
                use(position, samples.read(position))
            except BadImage as reason:
                bad.append((position, str(reason)))
        return bad

    found: list[tuple[int, str]] = []
    starts = range(0, len(samples), _CHUNK)
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for start, bad in zip(starts, pool.map(read, starts), strict=True):
            found += bad
            if advance:
                advance(min(_CHUNK, len(samples) - start))
    return found


def _positions_without(bad: list[tuple[int, str]], total: int) -> Ids:
    return np.delete(np.arange(total, dtype=np.int64), [position for position, _ in bad])


def _listed(samples: Samples, bad: list[tuple[int, str]]) -> list[BadSample]:
    return [BadSample(int(samples.ids[p]), samples.name(p), reason) for p, reason in bad]
