"""A set too large for the device, decoded once: from then on its pixels come from a file on a fast disk.

A GPU trains faster than the cores beside it decode: with ResNet-50 at 224 px, an H200 takes what 16 of them
give, if they are fast. Every epoch but the first then costs no more than reading 150 kB an image.
"""

import contextlib
import math
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pmal._runtime.ranks import ALONE, Ranks
from pmal.data.batches import Plan, StreamedImages, chosen_images, uploaded
from pmal.errors import DataError


class DecodedImages:
    """Streamed images that are kept as they are decoded, in a file that ends with the process.

    Processes on one machine have it in common: what one has decoded, the others read.
    """

    def __init__(self, images: StreamedImages, room: torch.Tensor) -> None:
        """room: of `scratch_file`, for as many images or for more."""
        self.images, dataset = images, images.dataset
        shape = (len(dataset), dataset.channels, dataset.size, dataset.size)
        size = math.prod(shape)
        self.pixels, self.kept = room[:size].view(shape), room[size:][: len(dataset)].view(torch.bool)

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return uploaded(self._batches(plan), self.images.device)

    def fingerprint(self) -> str:
        return self.images.fingerprint()

    def _batches(self, plan: Plan) -> Iterator[torch.Tensor]:
        lacking = [positions[~self.kept[positions]] for positions in plan]
        wanted = [positions for positions in lacking if len(positions)]
        if not wanted:
            self.images.end_workers()  # each holds some hundred MB
        decoded = self.images.decoded(wanted)
        for positions, new in zip(plan, lacking, strict=True):
            if len(new):
                self.pixels[new] = next(decoded)
                self.kept[new] = True  # after its pixels: another process may look
            yield chosen_images(self.pixels, positions, self.images.device)


def scratch_file(folder: Path, shape: tuple[int, ...], ranks: Ranks = ALONE) -> torch.Tensor:
    """Zeros on disk, a byte for each pixel of images of this shape (N, C, H, W) and one for each image.

    Its name is gone once all have opened it, before it takes any room: whatever ends them, nothing stays. One
    per machine: memory maps of a folder that several share through a network would not agree.
    """
    path = folder / f"pmal-{ranks.by_first(lambda: secrets.token_hex(8))}-{socket.gethostname()}"
    descriptor, room, failed = -1, None, ""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        failed = f"no file can be made there ({error.strerror}): name another folder"
    try:
        _check_all(folder, failed, ranks)
    finally:
        with contextlib.suppress(OSError):  # another process was first, or it was never there
            path.unlink()
    size = math.prod(shape) + shape[0]
    try:
        with os.fdopen(descriptor, "r+b") as file:
            if hasattr(os, "posix_fallocate"):  # not on every system
                os.posix_fallocate(file.fileno(), 0, size)  # now: a disk that is full later kills the process
            room = torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,)))
    except OSError as error:
        gigabytes = f"{size / 1e9:,.1f} GB of decoded images"
        failed = f"no room for {gigabytes} there ({error.strerror}): name a folder on a larger disk"
    _check_all(folder, failed, ranks)
    assert room is not None
    return room


def _check_all(folder: Path, failed: str, ranks: Ranks) -> None:
    """Where one process cannot go on, none does."""
    failed = next(filter(None, ranks.gather(failed)), "")
    if failed:
        raise DataError(f"--cache {folder}: {failed}, or leave it out")
