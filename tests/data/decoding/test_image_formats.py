"""HEIC: read where its reader is installed, within the same limits, and refused in one line elsewhere."""

import contextlib
import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from pmal.data.decoding import image_formats as formats
from pmal.data.decoding.decode import TooManyPixels, decode, decode_fitted, verify
from pmal.data.decoding.image_formats import NotAnImage, reader_of
from pmal.data.samples import BadImage

SHADES = np.zeros((64, 96, 3), np.uint8)
SHADES[:, :48] = (200, 40, 40)
SHADES[32:, 48:] = (30, 60, 220)
MP4 = struct.pack(">I", 24) + b"ftypisom" + b"\0\0\2\0" + b"isomiso2"


def heic(pixels: np.ndarray = SHADES, **options: object) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    buffer = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(buffer, quality=95, **options)
    return buffer.getvalue()


def with_declared_size(data: bytes, width: int, height: int) -> bytes:
    """The same file with another size in its header."""
    at = data.index(b"ispe") + 8
    assert struct.unpack(">II", data[at : at + 8]) == (96, 64)
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


def test_the_pixels_are_those_that_were_written() -> None:
    data = heic()
    difference = np.abs(decode(data).astype(int) - SHADES)
    assert difference.shape == SHADES.shape
    assert difference.mean() < 3
    assert decode_fitted(data, 16, 1).shape == (16, 16, 1)
    verify(data)


def test_an_image_of_a_camera_is_turned_once() -> None:
    exif = Image.Exif()
    exif[274] = 6
    turned = decode(heic(exif=exif.tobytes()))
    assert turned.shape == (96, 64, 3)
    assert np.abs(turned.astype(int) - np.rot90(SHADES, -1)).mean() < 4


def test_too_many_pixels_are_refused_by_the_header() -> None:
    data = heic()
    with pytest.raises(TooManyPixels, match="96 x 64 pixels"):
        decode(data, max_pixels=96 * 64 - 1)
    with pytest.raises(BadImage):
        decode(with_declared_size(data, 60_000, 60_000))


@pytest.mark.slow
def test_more_pixels_than_the_header_declares_are_refused() -> None:
    """What is declared is within the limit; what would be decoded need not be."""
    many = heic(np.zeros((2000, 3000, 3), np.uint8))
    at = many.index(b"ispe") + 8
    small = many[:at] + struct.pack(">II", 10, 10) + many[at + 8 :]
    with pytest.raises(BadImage, match=r"^HEIF: [^\n]+$"):
        decode(small, max_pixels=100_000)


def test_damage_is_a_reason_and_no_traceback() -> None:
    data = heic()
    for end in (40, len(data) // 2, len(data) - 9):
        with pytest.raises(BadImage, match=r"^HEIF: [^\n]+$"):
            decode(data[:end])
    random = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        for at in random.integers(12, len(data), 3):
            damaged[at] = random.integers(256)
        with contextlib.suppress(BadImage):  # any other error fails the test
            decode(bytes(damaged), max_pixels=1_000_000)


@pytest.mark.parametrize("head", [b"heic\0\0\0\0mif1", b"mif1\0\0\0\0heic"])
def test_a_missing_reader_is_named(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    formats._heic_reader.cache_clear()
    with pytest.raises(BadImage, match=r"^HEIC: to read it, pip install pillow-heif$"):
        decode(struct.pack(">I", 20) + b"ftyp" + head)
    formats._heic_reader.cache_clear()


def test_avif_is_refused_by_name() -> None:
    with pytest.raises(BadImage, match=r"^AVIF is not read: save the image as JPEG or PNG$"):
        decode(struct.pack(">I", 24) + b"ftypavif\0\0\0\0mif1miaf")


@pytest.mark.parametrize("data", [MP4, b"hello", b"\0\0\0\x10ftyp", b"RIFF\0\0\0\0WAVEfmt "])
def test_films_and_texts_are_no_images(data: bytes) -> None:
    with pytest.raises(NotAnImage, match=r"^not a JPEG"):
        reader_of(data)


def test_the_reader_is_known_to_us_alone() -> None:
    before = set(Image.OPEN)
    decode(heic())
    assert "HEIF" not in set(Image.OPEN) - before


def test_a_damaged_tiff_writes_nothing_to_standard_error(capfd):
    buffer = io.BytesIO()
    Image.fromarray(SHADES).save(buffer, "TIFF", compression="tiff_lzw")
    data = buffer.getvalue()
    with pytest.raises(BadImage, match="TIFF: decoder error"):
        decode(data[:8] + b"\xff" * 60 + data[68:])
    assert capfd.readouterr() == ("", "")
