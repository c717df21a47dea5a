"""Image bytes to pixels, and pixels to the size and channels that a model takes.

What happens to an image, whatever its file is called:

- JPEG, PNG, WebP, BMP, GIF, TIFF and PPM are read, told apart by their first bytes. Anything else is refused.
- An image of more than 50 megapixels is refused on its header, before memory for its pixels is taken.
- The rotation in the EXIF data is applied. EXIF data that cannot be read counts as "not rotated".
- Gray stays one channel; black-and-white becomes gray. A palette, CMYK, YCbCr and LAB become RGB.
- 16 bits a channel become 8: gray is divided by 257 and rounded, color keeps its high byte.
  Integers outside 0..65535 and floating-point pixels are refused: nothing says what their white is.
- What is transparent shows white. Of an animation, the first frame counts.
- A truncated or damaged image is refused as a whole; no half-gray pictures enter a training.

Refused means `BadImage` with a reason, and the loader lists the image in the quarantine.
"""

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base as ExifTag
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pmal.data.samples import BadImage, Pixels

MAX_PIXELS = 50_000_000

_READERS: tuple[tuple[tuple[bytes, ...], type[ImageFile]], ...] = (
    ((b"\xff\xd8\xff",), JpegImageFile),
    ((b"\x89PNG\r\n\x1a\n",), PngImageFile),
    ((b"RIFF",), WebPImageFile),
    ((b"BM",), BmpImageFile),
    ((b"GIF87a", b"GIF89a"), GifImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), PpmImageFile),
)

# What Pillow raises on damaged bytes. LookupError: IndexError and KeyError.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Pixels (H, W, C), C = 1 or 3, of an encoded image. Raises `BadImage` with a short reason."""
    if not data:
        raise BadImage("empty file")
    reader = _reader_of(data)
    with _quiet_pillow():
        try:
            return _decode_by(reader, data, max_pixels)
        except _DAMAGE as error:
            raise BadImage(f"{reader.format}: {_reason(error)}") from error


def fit_to(pixels: Pixels, size: int, channels: int) -> Pixels:
    """Pixels (size, size, channels): shorter side scaled to `size` (bilinear, antialiased), centered crop.

    >>> fit_to(np.zeros((20, 30, 3), np.uint8), 10, 1).shape
    (10, 10, 1)
    """
    height, width, _ = pixels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    if side == size:
        pixels = pixels[top : top + side, left : left + side]
    else:
        # The box keeps the scaled long side of a very thin image from ever existing.
        box = (left, top, left + side, top + side)
        pixels = _as_array(_as_image(pixels).resize((size, size), Image.Resampling.BILINEAR, box=box))
    return _with_channels(pixels, channels)


def encode_png(pixels: Pixels) -> bytes:
    """The same pixels as a PNG, losslessly.

    >>> pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    >>> bool((decode(encode_png(pixels)) == pixels).all())
    True
    """
    buffer = io.BytesIO()
    _as_image(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _reader_of(data: bytes) -> type[ImageFile]:
    for magics, reader in _READERS:
        if data.startswith(magics) and (reader is not WebPImageFile or data[8:12] == b"WEBP"):
            return reader
    raise BadImage("not a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM image")


def _decode_by(reader: type[ImageFile], data: bytes, max_pixels: int) -> Pixels:
    # Not `Image.open`: it applies a pixel limit of its own, which only a global variable of Pillow can lift.
    _check_size(_canvas_size(reader, data), max_pixels)
    with reader(io.BytesIO(data)) as image:
        _check_size(image.size, max_pixels)
        image.load()
        turn = _turn_of(image)
        plain = _to_gray_or_rgb(image)
        return _as_array(plain if turn is None else plain.transpose(turn))


def _reason(error: BaseException) -> str:
    if isinstance(error.__cause__ or error, (struct.error, EOFError, IndexError)):
        return "ends within its header"
    message = " ".join(str(error).split()) or type(error).__name__
    return message[:200] if message.isprintable() else ascii(message)[:200]


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise BadImage(f"{width} x {height} pixels are more than the limit of {max_pixels}")


def _canvas_size(reader: type[ImageFile], data: bytes) -> tuple[int, int]:
    """The size in the header of the formats for which Pillow takes memory when it opens them, else (0, 0)."""

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


def _turn_of(image: ImageFile) -> Image.Transpose | None:
    try:
        return _TURNS.get(image.getexif().get(ExifTag.Orientation, 1))
    except _DAMAGE:
        return None


def _to_gray_or_rgb(image: Image.Image) -> Image.Image:
    """The same picture in mode L or RGB."""
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


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    if pixels.shape[2] == channels:
        return pixels
    return _as_array(_as_image(pixels).convert("L" if channels == 1 else "RGB"))


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
    """No warnings from Pillow's modules (mostly about damaged EXIF data).

    The warning filters belong to the whole process. So the first of several threads changes them and the last
    one restores them; nested changes would be undone in the wrong order.
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
