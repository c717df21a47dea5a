"""Looking at every image of a part once, and keeping about 300 bytes of each."""

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.processes.launch import usable_cores
from pmal._runtime.progress import Display
from pmal.data.decoding.decode import Examined, examine, gray_square
from pmal.data.decoding.image_formats import NotAnImage
from pmal.data.inspection.near_duplicates import SIDE
from pmal.data.samples import BadImage, EncodedStore, Samples

LEAST_SIDE = 64
"""A large JPEG is reduced to no less than this side."""
CONSTANT = 2
"""Levels of 255 by which pixels of a one-color image may differ: JPEG adds some noise."""
_CHUNK = 64
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Look:
    """Kept properties of one image."""

    width: int
    height: int
    channels: int
    kind: str
    turned: bool
    constant: bool
    digest: bytes
    thumbnail: NDArray[np.uint8]


@dataclass(frozen=True)
class Unread:
    """A sample that cannot be decoded, and whether it claims to be an image at all."""

    position: int
    reason: str
    no_image: bool


@dataclass(frozen=True)
class PartLooks:
    """A part after all of its images were looked at; row i of the arrays belongs to sample i."""

    part: str
    samples: Samples
    readable: NDArray[np.bool_]
    sides: NDArray[np.int32]
    constant: NDArray[np.bool_]
    digests: NDArray[np.uint8]
    thumbnails: NDArray[np.uint8]
    shapes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    turned: list[int] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


def look_at_part(part: str, samples: Samples, display: Display) -> PartLooks:
    """Return the properties of all images of a part. They are read in threads, and not kept."""
    count = len(samples)
    looks = PartLooks(
        part,
        samples,
        readable=np.zeros(count, np.bool_),
        sides=np.zeros((count, 2), np.int32),
        constant=np.zeros(count, np.bool_),
        digests=np.zeros((count, _DIGEST_BYTES), np.uint8),
        thumbnails=np.zeros((count, SIDE, SIDE), np.uint8),
    )

    def look_at(start: int) -> list[Look | Unread]:
        return [_try(samples, position) for position in range(start, min(start + _CHUNK, count))]

    starts = range(0, count, _CHUNK)
    with (
        display.stage(f"checking {part}", count, "images") as advance,
        ThreadPoolExecutor(usable_cores()) as pool,
    ):
        for start, seen in zip(starts, pool.map(look_at, starts), strict=True):
            for position, look in enumerate(seen, start):
                _keep(looks, position, look)
            advance(len(seen))
    return looks


def look_at_image(samples: Samples, position: int) -> Look:
    """Return the properties of one image.

    Its digest is that of its pixels, or of its file if not all of its pixels are decoded.

    Raises:
        BadImage: the image cannot be read.
    """
    store, row = samples.store, int(samples.ids[position])
    if isinstance(store, EncodedStore):
        data = store.encoded(row)
        seen = examine(data, LEAST_SIDE)
    else:
        data, pixels = b"", store.read(row)
        height, width, channels = pixels.shape
        seen = Examined(width, height, "gray" if channels == 1 else "RGB", False, False, pixels)
    shape = f"{seen.width}x{seen.height}x{seen.pixels.shape[2]}"
    content = data if seen.reduced else shape.encode() + seen.pixels.tobytes()
    return Look(
        seen.width,
        seen.height,
        seen.pixels.shape[2],
        seen.kind,
        seen.turned,
        constant=int(np.ptp(seen.pixels, axis=(0, 1)).max()) <= CONSTANT,
        digest=hashlib.sha256(content).digest(),
        thumbnail=gray_square(seen.pixels, SIDE),
    )


def _try(samples: Samples, position: int) -> Look | Unread:
    try:
        return look_at_image(samples, position)
    except BadImage as error:
        return Unread(position, str(error), isinstance(error, NotAnImage))


def _keep(looks: PartLooks, position: int, look: Look | Unread) -> None:
    if isinstance(look, Unread):
        looks.unread.append(look)
        return
    looks.readable[position] = True
    looks.sides[position] = look.width, look.height
    looks.constant[position] = look.constant
    looks.digests[position] = np.frombuffer(look.digest, np.uint8)
    looks.thumbnails[position] = look.thumbnail
    looks.shapes[f"{look.width}x{look.height}x{look.channels}"] += 1
    looks.kinds[look.kind] += 1
    if look.turned:
        looks.turned.append(position)
