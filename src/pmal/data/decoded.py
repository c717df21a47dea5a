"""A set too large for the device, decoded once: from then on its pixels come from a file on a fast disk.

A GPU trains faster than the cores beside it decode: with ResNet-50 at 224 px, an H200 takes what 16 to 32 of
them give. Every epoch but the first then costs no more than reading 150 kB an image.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from pmal.data.batches import Plan, StreamedImages, chosen_images, uploaded
from pmal.errors import DataError


class DecodedImages:
    """Streamed images that are kept as they are decoded, in a file that ends with the process."""

    def __init__(self, images: StreamedImages, pixels: torch.Tensor) -> None:
        """pixels: room for all images, or more, from `scratch_file`."""
        self.images, self.pixels = images, pixels
        self.kept = torch.zeros(len(images), dtype=torch.bool)

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
                self.kept[new] = True
            yield chosen_images(self.pixels, positions, pinned=self.images.device.type == "cuda")


def scratch_file(folder: Path, shape: tuple[int, ...]) -> torch.Tensor:
    """Room on disk without a name: whatever ends the process, nothing of it stays behind."""
    size = int(np.prod(shape))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # not on every system
                os.posix_fallocate(file.fileno(), 0, size)  # now: a disk that is full later kills the process
            return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=shape))
    except OSError as error:
        found, fix = "decoded images cannot be kept there", "name a folder that can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            found, fix = (
                f"no room for {size / 1e9:,.1f} GB of decoded images there",
                "name one on a larger disk",
            )
        reason = error.strerror or type(error).__name__
        raise DataError(f"--cache {folder}: {found} ({reason}): {fix}, or leave it out") from None
