"""Which of Pillow's readers reads an image, detected by the first bytes of its file.

Readers are called directly. `Image.open` would try every format that Pillow and its plugins know, and has a
pixel limit of its own. The HEIC reader is imported at the first such file, from the package pillow-heif
(`pip install pillow-heif`). AVIF is not read: Pillow's reader decodes the whole stream, whatever size the
header declares, so no limit would hold before memory is allocated.
"""

import ctypes
import logging
from contextlib import suppress
from ctypes.util import find_library
from functools import cache
from importlib import import_module
from pathlib import Path

import PIL
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pmal.data.samples import BadImage

# Else what Pillow logs of a damaged file would go to standard error.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_READERS: tuple[tuple[tuple[bytes, ...], type[ImageFile]], ...] = (
    ((b"\xff\xd8\xff",), JpegImageFile),
    ((b"\x89PNG\r\n\x1a\n",), PngImageFile),
    ((b"RIFF",), WebPImageFile),
    ((b"BM",), BmpImageFile),
    ((b"GIF87a", b"GIF89a"), GifImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImageFile),
    ((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), PpmImageFile),
)
_AVIF = frozenset({b"avif", b"avis"})
_HEIC = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_MOST_BRANDS = 64


class NotAnImage(BadImage):
    """The bytes are in no supported format."""


def reader_of(data: bytes) -> type[ImageFile]:
    """Return the class that reads an encoded image.

    Raises:
        BadImage: the format is not read, or its package is missing.
    """
    for magics, reader in _READERS:
        if data.startswith(magics) and (reader is not WebPImageFile or data[8:12] == b"WEBP"):
            if reader is TiffImageFile:
                _silence_libtiff()
            return reader
    brands = _brands(data)
    if brands & _AVIF:
        raise BadImage("AVIF is not read: save the image as JPEG or PNG")
    if brands & _HEIC:
        if heic := _heic_reader():
            return heic
        raise BadImage("HEIC: to read it, pip install pillow-heif")
    raise NotAnImage("not a JPEG, PNG, WebP, HEIC, BMP, GIF, TIFF or PPM image")


@cache
def _silence_libtiff() -> None:
    """Have libtiff write nothing to standard error, where a damaged file would fill a service's log.

    Pillow's packages bring a libtiff of their own; its function pointer belongs to the whole process.
    """
    package = Path(PIL.__file__).parent
    own = [*package.glob("../pillow.libs/libtiff*"), *package.glob(".dylibs/libtiff*")]
    for library in map(str, own or filter(None, [find_library("tiff")])):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(library).TIFFSetErrorHandler(None)


def _brands(data: bytes) -> set[bytes]:
    """Return the brands of a file of the MP4 family: AVIF and HEIC share some brands with videos."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4]), len(data), 4 * _MOST_BRANDS)
    return {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}


@cache
def _heic_reader() -> type[ImageFile] | None:
    """Return the HEIC reader, not registered: else `Image.open` would read HEIC in the whole process."""
    try:
        reader: type[ImageFile] = import_module("pillow_heif").HeifImageFile
    except ImportError:
        return None
    return reader
