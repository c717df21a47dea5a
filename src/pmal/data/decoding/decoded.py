"""A set too large for the device, decoded once: later epochs read its pixels from a file on a fast disk.

A GPU trains faster than its machine's cores decode: with ResNet-50 at 224 px, one H200 needs all that 16
fast cores can decode. With the file, every epoch but the first only reads 150 kB an image.
"""

import contextlib
import math
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.data.feeding.batches import StreamedImages, empty_batch, uploaded
from pmal.data.feeding.workers import Plan
from pmal.errors import DataError

THREADS = 8
"""Threads that read and write a batch: a single one would wait for the disk at every image."""
Move = Callable[[int, list[memoryview], int], int]
"""Either os.preadv or os.pwritev."""


class DecodedImages:
    """Streamed images that are stored as they are decoded, in a file that ends with the process.

    Processes on one machine share the file: what one has decoded, the others read.
    """

    def __init__(self, images: StreamedImages, file: "ScratchFile") -> None:
        """Take the images and a file for at least as many images."""
        self.images, self.file, self.shape = images, file, images.dataset.shape.of_tensor

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return uploaded(self._batches(plan), self.images.device)

    def fingerprint(self) -> str:
        return self.images.fingerprint()

    def _batches(self, plan: Plan) -> Iterator[torch.Tensor]:
        kept = self.file.kept()
        lacking = [positions[~kept[positions]] for positions in plan]
        wanted = [positions for positions in lacking if len(positions)]
        if not wanted:
            self.images.workers.end()  # nothing is left to decode
        decoded = self.images.workers.results(wanted)
        for positions, new in zip(plan, lacking, strict=True):
            if len(new):
                self.file.write(new, next(decoded))
            batch = empty_batch((len(positions), *self.shape), torch.uint8, self.images.device)
            self.file.read(positions, batch)
            yield batch


class ScratchFile:
    """Images in a file without a name, which disappears when the last process that opened it ends.

    It is read and written, not mapped into memory. A mapped file costs a page fault for every 4 kB, and a
    failing disk would kill the process instead of raising an error.
    """

    def __init__(self, descriptor: int, count: int, image_bytes: int) -> None:
        self.descriptor, self.count, self.image_bytes = descriptor, count, image_bytes
        self._pool = ThreadPoolExecutor(THREADS)
        weakref.finalize(self, os.close, descriptor)

    def kept(self) -> torch.Tensor:
        """Return which images the file has, bool (N,). The marks are stored after all pixels."""
        marks = bytearray(self.count)
        self._whole(os.preadv, marks, self.count * self.image_bytes)
        return torch.frombuffer(marks, dtype=torch.bool)

    def write(self, positions: torch.Tensor, images: torch.Tensor) -> None:
        """Store images (B, C, H, W) at these positions."""
        self._each(os.pwritev, positions, images)
        for position in positions.tolist():  # the mark after the pixels: another process may read meanwhile
            self._whole(os.pwritev, bytearray([1]), self.count * self.image_bytes + position)

    def read(self, positions: torch.Tensor, into: torch.Tensor) -> None:
        """Read the images at these positions into a batch (B, C, H, W)."""
        self._each(os.preadv, positions, into)

    def _each(self, move: Move, positions: torch.Tensor, images: torch.Tensor) -> None:
        # A view, never a copy: what is read must reach the caller's memory.
        rows, places = images.view(len(images), -1).numpy(), positions.tolist()

        def part(first: int) -> None:
            for row in range(first, len(places), THREADS):
                self._whole(move, rows[row].data, places[row] * self.image_bytes)

        list(self._pool.map(part, range(min(THREADS, len(places)))))

    def _whole(self, move: Move, buffer: bytearray | memoryview, offset: int) -> None:
        """Move the whole buffer: one call may move only a part."""
        rest = memoryview(buffer)
        while len(rest):
            try:
                moved = move(self.descriptor, [rest], offset)
            except OSError as error:
                raise DataError(f"--cache: its disk failed ({error.strerror}): name another folder") from None
            if not moved:
                raise DataError("--cache: its file was cut off: name another folder")
            rest, offset = rest[moved:], offset + moved


def scratch_file(folder: Path, shape: tuple[int, ...], ranks: Ranks = ALONE) -> ScratchFile:
    """Return room on disk for images of this shape (N, C, H, W).

    The name is removed once all processes have opened the file and before it grows: however they end, nothing
    stays. There is one file per machine: a folder shared through a network would be slower than decoding.

    Raises:
        DataError: the folder cannot be written or has too little room.
    """
    path = folder / f"pmal-{ranks.by_first(lambda: secrets.token_hex(8))}-{socket.gethostname()}"
    descriptor, failed = -1, ""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        failed = f"no file can be made there ({error.strerror}): name another folder"
    try:
        _check_all(folder, failed, ranks)
    finally:
        with contextlib.suppress(OSError):  # another process was first, or the file was never created
            path.unlink()
    file = ScratchFile(descriptor, shape[0], math.prod(shape[1:]))
    size = math.prod(shape) + shape[0]
    try:
        # Reserve now rather than find the disk full after hours.
        getattr(os, "posix_fallocate", _lengthen)(descriptor, 0, size)
    except OSError as error:
        gigabytes = f"{size / 1e9:,.1f} GB of decoded images"
        failed = f"no room for {gigabytes} there ({error.strerror}): name a folder on a larger disk"
    _check_all(folder, failed, ranks)
    return file


def _lengthen(descriptor: int, begin: int, size: int) -> None:
    """Set the size of the file on systems that cannot reserve room."""
    os.ftruncate(descriptor, begin + size)


def _check_all(folder: Path, failed: str, ranks: Ranks) -> None:
    """Raise the first error of any process in all processes."""
    failed = next(filter(None, ranks.gather(failed)), "")
    if failed:
        raise DataError(f"--cache {folder}: {failed}, or leave it out")
