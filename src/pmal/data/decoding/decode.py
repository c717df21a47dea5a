"""Decoding of image bytes to pixels, and resizing of pixels to a model's size and channels.

What happens to an image, whatever its file name:

- JPEG, PNG, WebP, BMP, GIF, TIFF and PPM are read; HEIC is read if the package pillow-heif is installed.
  The format is detected by the first bytes (`image_formats.py`). Any other format is rejected.
- An image of more than 50 megapixels is rejected by its header, before memory for its pixels is allocated.
  So is a TIFF with a tile of that size, whatever part of it is shown.
- The rotation in the EXIF data is applied. EXIF data that cannot be read counts as "not rotated".
- Gray stays one channel; black-and-white becomes gray. A palette, CMYK, YCbCr and LAB become RGB.
- 16 bits a channel become 8: gray is divided by 257 and rounded, color keeps its high byte.
  Integers outside 0..65535 and floating-point pixels are rejected: their white level is unknown.
- Transparent areas become white. Of an animation, the first frame is read.
- A truncated or damaged image is rejected as a whole; no half-gray pictures enter a training.
- A JPEG of which far fewer pixels are needed is decoded at a half, a quarter or an eighth of its size.
- A HEIC image that has more pixels than its header declares is rejected by its decoder.
- A JPEG of more than 100 scans is rejected: each takes a few bytes and a pass over all pixels.

To reject is to raise `BadImage` with a reason; the loader then lists the image in the quarantine.
"""

import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from PIL import Image
from PIL.ExifTags import Base as ExifTag
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pmal.data.decoding.image_formats import reader_of
from pmal.data.samples import BadImage, Pixels

MAX_PIXELS = 50_000_000
MAX_SCANS = 100
"""Largest number of scans of a JPEG. Encoders write about ten; a small file with very many takes hours."""
REDUCED_MARGIN = 1.5
"""A JPEG decoded at reduced size has at least this many times the wanted size.

The rest is scaled as usual. With this margin the pixels of photographs differ from those of a full decode
less (by 1 of 255 in the mean) than they would with a bicubic filter; without it, by up to 3.
"""

BILINEAR, BICUBIC, LANCZOS = "bilinear", "bicubic", "lanczos"
WHOLE = ", whole"
_FILTERS = {
    BILINEAR: Image.Resampling.BILINEAR,
    BICUBIC: Image.Resampling.BICUBIC,
    LANCZOS: Image.Resampling.LANCZOS,
}
RESIZINGS = (*_FILTERS, *(f"{name}{WHOLE}" for name in _FILTERS))
"""Ways to make an image a square: the filter of the interpolation, all antialiased.

The largest square in the middle is kept. With `whole`, all of the image is kept and squeezed.
"""

Result = TypeVar("Result")


class TooManyPixels(BadImage):
    """The image has more pixels than the given limit."""


@dataclass(frozen=True)
class Examined:
    """Properties of an image; its size is that of the upright picture."""

    width: int
    height: int
    kind: str
    """RGB, gray, palette, CMYK, transparent, or Pillow's name of another mode."""
    turned: bool
    """Whether its EXIF data rotate or mirror it."""
    reduced: bool
    """Whether the pixels are those of a smaller image."""
    pixels: Pixels


# What Pillow raises on damaged bytes. LookupError: IndexError and KeyError; RuntimeError: HEIC.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_PIXEL_BYTES = 24
"""What a pixel takes while its image is decoded, at most."""

_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""A marker, also within the pixels of a JPEG, where a 0 follows each plain 255. Restarts are excluded."""
_ALONE, _END, _SCAN = (0x01, 0xD8), 0xD9, 0xDA
"""Markers without a length, the end marker, and the scan marker."""

_TILE_SIDES = (322, 323)
"""TIFF tags of the width and length of a tile."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ON_THE_SIDE = tuple(_TURNS[orientation] for orientation in (5, 6, 7, 8))
_MIRRORED_X = tuple(_TURNS[orientation] for orientation in (2, 3, 7, 8))
_MIRRORED_Y = tuple(_TURNS[orientation] for orientation in (3, 4, 6, 7))


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Return the pixels (H, W, C), C = 1 or 3, of an encoded image of at most `max_pixels`.

    Raises:
        BadImage: the image cannot be read; the message is a short reason.
    """
    return _read(data, max_pixels, lambda image: _as_array(_upright(image)))


def decode_fitted(
    data: bytes, size: int, channels: int, resize: str = BILINEAR, *, max_pixels: int = MAX_PIXELS
) -> Pixels:
    """Return `fit_to(decode(data), size, channels, resize)`, but decode no more of a large JPEG than needed.

    Raises:
        BadImage: as in `decode`.
    """
    return _read(data, max_pixels, lambda image: _fitted(image, size, channels, resize))


def decode_small(data: bytes, most: int) -> Pixels:
    """Return a square of at most `most` pixels a side, gray or RGB like the image; fast for a large JPEG."""
    return _read(data, MAX_PIXELS, lambda image: _fitted(image, min(*image.size, most), 0))


def verify(data: bytes, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise what `decode` raises.

    A JPEG is decoded at an eighth of its size, which is faster and shows the same damage.
    """

    def load(image: ImageFile) -> None:
        _reduce(image, 8)
        _upright(image)

    _read(data, max_pixels, load)


def examine(data: bytes, least: int) -> "Examined":
    """Return the properties and pixels of an image; of a large JPEG, reduced to no less than `least` a side.

    Raises:
        BadImage: as in `decode`.
    """

    def look(image: ImageFile) -> Examined:
        (width, height), kind = image.size, _kind(image)
        scale = _reduce(image, min(width, height) // least)
        upright = _upright(image)
        turn = _turn_of(image)
        size = (height, width) if turn in _ON_THE_SIDE else (width, height)
        return Examined(*size, kind, turn is not None, scale > 1, _as_array(upright))

    return _read(data, MAX_PIXELS, look)


def gray_square(pixels: Pixels, side: int) -> Pixels:
    """Return the whole image as gray pixels (side, side), each the mean of the area that it covers.

    >>> gray_square(np.full((4, 8, 3), 9, np.uint8), 2).tolist()
    [[9, 9], [9, 9]]
    """
    return np.array(_as_image(pixels).convert("L").resize((side, side), Image.Resampling.BOX))


def fit_to(pixels: Pixels, size: int, channels: int, resize: str = BILINEAR) -> Pixels:
    """Return pixels (size, size, channels) of the largest square in the middle, or of the whole image.

    Args:
        pixels: the image.
        size: side of the square.
        channels: 1 or 3.
        resize: one of `RESIZINGS`.

    >>> fit_to(np.zeros((20, 30, 3), np.uint8), 10, 1).shape
    (10, 10, 1)
    """
    if pixels.shape == (size, size, channels):
        return pixels
    return _as_array(_fit_image(_as_image(pixels), size, channels, resize))


def encode_png(pixels: Pixels) -> bytes:
    """Return the pixels as a lossless PNG.

    >>> pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    >>> bool((decode(encode_png(pixels)) == pixels).all())
    True
    """
    buffer = io.BytesIO()
    _as_image(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _read(data: bytes, max_pixels: int, use: Callable[[ImageFile], Result]) -> Result:
    """Check the header and size of an image, and return what `use` makes of it."""
    if not data:
        raise BadImage("empty file")
    reader, size = reader_of(data), (0, 0)
    with _quiet_pillow():
        try:
            # Not `Image.open`: its own pixel limit can only be lifted by a global variable of Pillow.
            size = _canvas_size(reader, data)
            _check_size(size, max_pixels)
            with reader(io.BytesIO(data)) as image:
                size = image.size
                _check_size(size, max_pixels)
                _check_hidden_work(image, data, max_pixels)
                return use(image)
        except _DAMAGE as error:
            if isinstance(error, MemoryError):
                bytearray(_PIXEL_BYTES * size[0] * size[1])  # fails, too, if the image is not at fault
            raise BadImage(f"{reader.format}: {_reason(error)}") from error


def _upright(image: ImageFile) -> Image.Image:
    """Return the whole picture, turned as its EXIF data say, in mode L or RGB."""
    image.load()
    turn = _turn_of(image)
    plain = _to_gray_or_rgb(image)
    return plain if turn is None else plain.transpose(turn)


def _fitted(image: ImageFile, size: int, channels: int, resize: str = BILINEAR) -> Pixels:
    width, height = image.size
    side = min(width, height)
    scale = _reduce(image, int(side / (REDUCED_MARGIN * size)))
    if scale == 1:
        return _as_array(_fit_image(_upright(image), size, channels, resize))
    image.load()
    turn = _turn_of(image)
    # The same part as of the full image. It is turned last, because the reduced sides are rounded up.
    left, top = (width - side + (turn in _MIRRORED_X)) // 2, (height - side + (turn in _MIRRORED_Y)) // 2
    part = (0, 0, width, height) if resize.endswith(WHOLE) else (left, top, left + side, top + side)
    left_edge, upper_edge, right_edge, lower_edge = (edge / scale for edge in part)
    box = (left_edge, upper_edge, right_edge, lower_edge)
    small = _to_gray_or_rgb(image).resize((size, size), _filter_of(resize), box=box)
    return _as_array(_with_channels(small if turn is None else small.transpose(turn), channels))


def _reduce(image: ImageFile, most: int) -> int:
    """Make a JPEG decode at the smallest of 1/2, 1/4 and 1/8 of its size that is at least 1/most.

    The JPEG transform gives these sizes at less cost than the full one. Return the divisor; 1: not reduced.
    """
    scale = next((divisor for divisor in (8, 4, 2) if divisor <= most), 1)
    if scale == 1 or not isinstance(image, JpegImageFile):
        return 1
    width, height = image.size
    image.draft(None, (max(width // scale, 1), max(height // scale, 1)))
    return scale if image.size == (-(-width // scale), -(-height // scale)) else 1


def _fit_image(image: Image.Image, size: int, channels: int, resize: str = BILINEAR) -> Image.Image:
    if resize.endswith(WHOLE):
        return _with_channels(image.resize((size, size), _filter_of(resize)), channels)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # The box avoids ever creating the scaled long side of a very thin image.
    box = (left, top, left + side, top + side)
    if side == size:
        return _with_channels(image.crop(box), channels)
    return _with_channels(image.resize((size, size), _filter_of(resize), box=box), channels)


def _filter_of(resize: str) -> Image.Resampling:
    return _FILTERS[resize.removesuffix(WHOLE)]


def _reason(error: BaseException) -> str:
    if isinstance(error.__cause__ or error, (struct.error, EOFError, IndexError)):
        return "ends within its header"
    message = " ".join(str(error).split()) or type(error).__name__
    return message[:200] if message.isprintable() else ascii(message)[:200]


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise TooManyPixels(f"{width} x {height} pixels are more than the limit of {max_pixels}")


def _check_hidden_work(image: ImageFile, data: bytes, max_pixels: int) -> None:
    """Reject work that the size of an image does not show."""
    if isinstance(image, TiffImageFile):  # a tile is decoded whole, however small the image is
        width, length = (image.tag_v2.get(tag, 0) for tag in _TILE_SIDES)
        _check_size((width, length), max_pixels)
    elif isinstance(image, JpegImageFile):
        _check_scans(data)


def _check_scans(data: bytes) -> None:
    at = scans = 0
    while match := _MARKER.search(data, at):
        marker, at = data[match.end() - 1], match.end()
        if marker == _END:  # other images or videos may follow
            return
        if marker not in _ALONE:
            at += int.from_bytes(data[at : at + 2])
        scans += marker == _SCAN
        if scans > MAX_SCANS:
            raise BadImage(f"JPEG: more than {MAX_SCANS} scans")


def _canvas_size(reader: type[ImageFile], data: bytes) -> tuple[int, int]:
    """Return the size in the header for formats whose pixels Pillow allocates on opening, else (0, 0)."""

    def bits(start: int, first_bit: int, count: int) -> int:
        return int.from_bytes(data[start : start + 4], "little") >> first_bit & ((1 << count) - 1)

    if reader is GifImageFile:
        return bits(6, 0, 16), bits(8, 0, 16)
    if reader is WebPImageFile and data[12:16] == b"VP8X":
        return bits(24, 0, 24) + 1, bits(27, 0, 24) + 1
    if reader is WebPImageFile and data[12:16] == b"VP8L":
        return bits(21, 0, 14) + 1, bits(21, 14, 14) + 1
    if reader is WebPImageFile:
        return bits(26, 0, 14), bits(28, 0, 14)
    return 0, 0


def _kind(image: ImageFile) -> str:
    if image.has_transparency_data:
        return "transparent"
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        return "gray"
    return "palette" if image.mode == "P" else image.mode


def _turn_of(image: ImageFile) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(ExifTag.Orientation, 1))
    except _DAMAGE:
        return None


def _to_gray_or_rgb(image: Image.Image) -> Image.Image:
    """Return the same picture in mode L or RGB."""
    if image.mode == "F":
        raise BadImage("floating-point pixels: save the image with 8 or 16 bits a channel")
    if image.mode.startswith("I"):
        return _from_wide_gray(image)
    color = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if not image.has_transparency_data:
        return image.convert(color)
    layered = image.convert(color + "A")
    alpha = layered.getchannel("A")
    white = Image.new(color, image.size, "white")
    return Image.composite(layered.convert(color), white, alpha)


def _from_wide_gray(image: Image.Image) -> Image.Image:
    wide = np.asarray(image)
    if wide.min() < 0 or wide.max() > 65535:
        raise BadImage("32-bit pixels outside 0..65535: save the image with 8 or 16 bits a channel")
    gray = ((wide.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if "transparency" in image.info:
        gray[wide == image.info["transparency"]] = 255
    return Image.fromarray(gray)


def _with_channels(image: Image.Image, channels: int) -> Image.Image:
    """Convert an image to 1 or 3 channels. With 0 it keeps its own."""
    return image.convert("L" if channels == 1 else "RGB") if channels else image


def _as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _as_array(image: Image.Image) -> Pixels:
    pixels = np.array(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


_quiet_lock = threading.Lock()
_quiet_depth = 0
_quiet_filters = warnings.catch_warnings()


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Silence warnings from Pillow's modules, which are mostly about damaged EXIF data.

    Warning filters belong to the whole process. So the first of several threads changes them and the last one
    restores them; nested changes would be undone in the wrong order.
    """
    global _quiet_depth, _quiet_filters
    with _quiet_lock:
        if _quiet_depth == 0:
            _quiet_filters = warnings.catch_warnings()
            _quiet_filters.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _quiet_depth += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                _quiet_filters.__exit__(None, None, None)
