"""A set too large for the device, decoded once: from then on its pixels come from a file on a fast disk.

A GPU trains faster than the cores beside it decode: with ResNet-50 at 224 px, an H200 takes what 16 to 32 of
them give. Every epoch but the first then costs no more than reading 150 kB an image.
"""

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

    def __init__(self, images: StreamedImages, folder: Path, ranks: Ranks = ALONE) -> None:
        self.images = images
        dataset = images.dataset
        shape = (len(dataset), dataset.channels, dataset.size, dataset.size)
        size = int(np.prod(shape))
        room = torch.from_numpy(_scratch_file(folder, size + len(dataset), ranks))
        self.pixels, self.kept = room[:size].view(shape), room[size:].view(torch.bool)

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        batches = self._batches(plan)
        return uploaded(batches, self.images.device) if self.images.device.type == "cuda" else batches

    def fingerprint(self) -> str:
        return self.images.fingerprint()

    def _batches(self, plan: Plan) -> Iterator[torch.Tensor]:
        lacking = [positions[~self.kept[positions]] for positions in plan]
        decoded = self.images.decoded([positions for positions in lacking if len(positions)])
        for positions, new in zip(plan, lacking, strict=True):
            if len(new):
                self.pixels[new] = next(decoded)
                self.kept[new] = True  # after its pixels: another process may look
            yield chosen_images(self.pixels, positions, pinned=self.images.device.type == "cuda")


def _scratch_file(folder: Path, size: int, ranks: Ranks) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Zeros on disk under a name that is gone once all have opened it: whatever ends them, nothing stays.

    One per machine: memory maps of a folder that several share through a network would not agree.
    """
    path = folder / f"pmal-{ranks.by_first(lambda: secrets.token_hex(8))}-{socket.gethostname()}"
    room, reason = None, ""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # now: a disk that is full later kills the process
            room = np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))
    except OSError as error:
        reason = error.strerror or type(error).__name__
    reason = next(filter(None, ranks.gather(reason)), "")
    path.unlink(missing_ok=True)
    if room is None or reason:
        raise DataError(
            f"--cache {folder}: no room for {size / 1e9:,.1f} GB of decoded images there ({reason}): "
            "name a folder on a larger disk, or leave it out"
        )
    return room
