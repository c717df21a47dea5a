"""Decoding of all samples to a model's size, in threads.

Imports no torch: an exported model needs none.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pmal._runtime.processes.launch import usable_cores
from pmal._runtime.progress import Advance
from pmal.data.decoding.decode import BILINEAR, decode_fitted, fit_to
from pmal.data.samples import BadImage, EncodedStore, Ids, Pixels, Samples

_CHUNK = 64
SMALL_SECONDS = 5e-4
"""Mean time below which the interpreter dominates: at 32 px, 16 threads decode half as many as one."""


class ImageShape(NamedTuple):
    """What a network takes: side and channels of the images, and how they become squares."""

    size: int
    channels: int
    resize: str = BILINEAR

    @property
    def of_tensor(self) -> tuple[int, int, int]:
        """Shape of an image as a tensor has it, (C, H, W)."""
        return self.channels, self.size, self.size


@dataclass(frozen=True)
class BadSample:
    """A sample that is left out, and the reason."""

    id: int
    name: str
    reason: str


def read_fitted(
    samples: Samples, shape: ImageShape, workers: int = 0, advance: Advance | None = None
) -> tuple[Pixels, Samples, list[BadSample]]:
    """Decode all samples in threads, see `try_all`.

    Returns:
        Pixels (M, C, H, W) of the M readable samples, these samples, and those that were not readable.
    """
    fitted = np.empty((len(samples), *shape.of_tensor), dtype=np.uint8)
    read = fitting_reader(samples, shape)

    def keep(position: int) -> None:
        fitted[position] = read(position).transpose(2, 0, 1)

    bad = try_all(len(samples), keep, workers, advance)
    readable = positions_without(bad, len(samples))
    return fitted[readable] if bad else fitted, samples.at(readable), listed(samples, bad)


def fitting_reader(samples: Samples, shape: ImageShape) -> Callable[[int], Pixels]:
    """Return a function from a position to the pixels (size, size, channels) there."""
    store, ids = samples.store, samples.ids
    if isinstance(store, EncodedStore):
        return lambda position: decode_fitted(store.encoded(int(ids[position])), *shape)
    return lambda position: fit_to(store.read(int(ids[position])), *shape)


def try_each(positions: Iterable[int], attempt: Callable[[int], None]) -> list[tuple[int, str]]:
    """Return the positions at which `attempt` raised `BadImage`, with the reasons."""
    bad = []
    for position in positions:
        try:
            attempt(position)
        except BadImage as reason:
            bad.append((position, str(reason)))
    return bad


def try_all(
    count: int, attempt: Callable[[int], None], workers: int, advance: Advance | None
) -> list[tuple[int, str]]:
    """Call `try_each` on all positions, in threads.

    Threads help because Pillow releases the interpreter lock while it decodes.

    Args:
        count: number of positions.
        attempt: called with each position.
        workers: number of threads. 0: one per core, or none if the first images are so small that threads
            would mostly wait for the interpreter.
        advance: called with the number of positions that were just tried.
    """

    def go_through(start: int) -> list[tuple[int, str]]:
        return try_each(range(start, min(start + _CHUNK, count)), attempt)

    found: list[tuple[int, str]] = []
    seconds: list[float] = []
    for position in range(min(_CHUNK, count)):
        begin = time.perf_counter()
        found += try_each([position], attempt)
        seconds.append(time.perf_counter() - begin)
    if advance:
        advance(len(seconds))
    small = not workers and statistics.median(seconds or [math.inf]) < SMALL_SECONDS
    starts = range(_CHUNK, count, _CHUNK)
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        chunks = map(go_through, starts) if small else pool.map(go_through, starts)
        for start, bad in zip(starts, chunks, strict=True):
            found += bad
            if advance:
                advance(min(_CHUNK, count - start))
    return found


def positions_without(bad: list[tuple[int, str]], total: int) -> Ids:
    """Return all positions below `total` but the bad ones."""
    return np.delete(np.arange(total, dtype=np.int64), [position for position, _ in bad])


def listed(samples: Samples, bad: list[tuple[int, str]]) -> list[BadSample]:
    """Return the bad positions as samples with their ids and names."""
    return [BadSample(int(samples.ids[p]), samples.name(p), reason) for p, reason in bad]
