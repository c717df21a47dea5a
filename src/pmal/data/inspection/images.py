"""Looking at every image of a part once, and keeping about 300 bytes of each."""

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.progress import Display
from pmal.data.decoding.decode import Examined, examine, gray_square
from pmal.data.decoding.fitting import try_all
from pmal.data.decoding.image_formats import NotAnImage
from pmal.data.inspection.near_duplicates import SIDE
from pmal.data.samples import EncodedStore, Samples

LEAST_SIDE = 64
"""A large JPEG is reduced to no less than this side."""
CONSTANT = 2
"""Levels of 255 by which pixels of a one-color image may differ: JPEG adds some noise."""
_DIGEST_BYTES = 32

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Seen:
    """A part after all of its samples were looked at; row i of the arrays belongs to sample i."""

    part: str
    samples: Samples
    readable: Mask
    digests: NDArray[np.uint8]
    """Bytes that are the same if two samples are equal."""
    unread: dict[int, str]
    """Positions of what cannot be read, with the reasons."""


@dataclass(frozen=True)
class PartLooks(Seen):
    """A part of images."""

    sides: NDArray[np.int32]
    """Width and height."""
    channels: NDArray[np.uint8]
    kinds: NDArray[np.object_]
    turned: Mask
    constant: Mask
    no_image: Mask
    """What does not even claim to be an image."""
    thumbnails: NDArray[np.uint8]


def look_at_part(part: str, samples: Samples, display: Display) -> PartLooks:
    """Return the properties of all images of a part. They are read in threads, and not kept."""
    count = len(samples)

    def zeros(kind: Any, *shape: int) -> NDArray[Any]:
        return np.zeros((count, *shape), kind)

    looks = PartLooks(
        part,
        samples,
        readable=zeros(np.bool_),
        digests=zeros(np.uint8, _DIGEST_BYTES),
        unread={},
        sides=zeros(np.int32, 2),
        channels=zeros(np.uint8),
        kinds=zeros(np.object_),
        turned=zeros(np.bool_),
        constant=zeros(np.bool_),
        no_image=zeros(np.bool_),
        thumbnails=zeros(np.uint8, SIDE, SIDE),
    )
    with display.stage(f"checking {part}", count, "images") as advance:
        looks.unread.update(try_all(count, partial(_look_at, looks), 0, advance))
    return looks


def _look_at(looks: PartLooks, position: int) -> None:
    """Keep the properties of one image.

    Its digest is that of its pixels, or of its file if not all of its pixels are decoded.

    Raises:
        BadImage: the image cannot be read.
    """
    store, row = looks.samples.store, int(looks.samples.ids[position])
    if isinstance(store, EncodedStore):
        data = store.encoded(row)
        try:
            seen = examine(data, LEAST_SIDE)
        except NotAnImage:
            looks.no_image[position] = True
            raise
    else:
        data, pixels = b"", store.read(row)
        height, width, channels = pixels.shape
        seen = Examined(width, height, "gray" if channels == 1 else "RGB", False, False, pixels)
    channels = seen.pixels.shape[2]
    shape = f"{seen.width}x{seen.height}x{channels}"
    content = data if seen.reduced else shape.encode() + seen.pixels.tobytes()
    looks.readable[position] = True
    looks.digests[position] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
    looks.sides[position] = seen.width, seen.height
    looks.channels[position] = channels
    looks.kinds[position] = seen.kind
    looks.turned[position] = seen.turned
    looks.constant[position] = int(np.ptp(seen.pixels, axis=(0, 1)).max()) <= CONSTANT
    looks.thumbnails[position] = gray_square(seen.pixels, SIDE)
