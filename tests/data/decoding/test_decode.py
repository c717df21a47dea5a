"""The policy in the docstring of `decode`, one test per line of it, and what damaged files give."""

import io
import struct
import threading
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from sklearn.datasets import load_sample_images

from pmal.data.decoding import decode as decode_module
from pmal.data.decoding.decode import (
    REDUCED_MARGIN,
    decode,
    decode_fitted,
    decode_small,
    encode_png,
    fit_to,
    verify,
)
from pmal.data.samples import BadImage

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)
GRAY = RNG.integers(0, 256, (12, 20), dtype=np.uint8)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that declares its size, announces pixels and ends."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + body
        + struct.pack(">I", zlib.crc32(body))
        + b"\0\0\1\0IDAT"
    )


# -- what is decoded --


def test_no_memory_for_an_image_is_no_fault_of_the_image(monkeypatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    png = encode_png(np.zeros((4, 4, 3), np.uint8))
    monkeypatch.setattr(decode_module, "_upright", fail)
    with pytest.raises(BadImage):  # there is room: the file asks for more than its header says
        decode(png)
    monkeypatch.setattr(decode_module, "_PIXEL_BYTES", 1 << 58)
    with pytest.raises(MemoryError):
        decode(png)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("PPM", {}),
     ("WEBP", {"lossless": True})],
)  # fmt: skip
def test_lossless_formats_give_the_same_pixels(kind: str, options: dict[str, object]) -> None:
    assert np.array_equal(decode(saved(Image.fromarray(COLOR), kind, **options)), COLOR)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_gray_stays_one_channel(kind: str) -> None:
    assert np.array_equal(decode(saved(Image.fromarray(GRAY), kind)), GRAY[:, :, None])


def test_jpeg_gives_what_pillow_gives() -> None:
    data = saved(Image.fromarray(COLOR), "JPEG", quality=90)
    assert np.array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))


def test_black_and_white_becomes_gray() -> None:
    black_or_white = GRAY > 127
    pixels = decode(saved(Image.fromarray(black_or_white), "PNG"))
    assert np.array_equal(pixels, np.where(black_or_white, 255, 0)[:, :, None])


def test_palette_becomes_rgb() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    for kind in ("PNG", "GIF", "BMP"):
        assert decode(saved(image, kind)).tolist() == [[[10, 20, 30], [200, 100, 50]]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(kind: str) -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert np.abs(decode(saved(red, kind)).astype(int) - [255, 0, 0]).max() <= 3


def test_lab_becomes_rgb() -> None:
    lab = Image.new("LAB", (4, 4), (255, 128, 128))  # white: 128 is neutral
    assert (decode(saved(lab, "TIFF")) >= 253).all()


def test_ycbcr_becomes_rgb() -> None:
    image = Image.fromarray(COLOR).convert("YCbCr")
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(decode(saved(image, "TIFF")), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_gray_is_divided_by_257_and_rounded(kind: str) -> None:
    every_value = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pixels = decode(saved(Image.fromarray(every_value), kind))
    assert np.array_equal(pixels[:, :, 0], np.round(every_value / 257))


def test_32_bit_gray_is_taken_within_16_bits_only() -> None:
    inside = np.array([[0, 257, 65535]], dtype=np.int32)
    assert decode(saved(Image.fromarray(inside), "TIFF"))[:, :, 0].tolist() == [[0, 1, 255]]
    for value in (-1, 65536):
        with pytest.raises(BadImage, match=r"outside 0\.\.65535"):
            decode(saved(Image.fromarray(np.array([[0, value]], dtype=np.int32)), "TIFF"))


def test_float_pixels_are_refused() -> None:
    with pytest.raises(BadImage, match="floating-point"):
        decode(saved(Image.fromarray(np.zeros((3, 3), np.float32)), "TIFF"))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_pixels_show_white(kind: str) -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(10, 20, 30, 255), (10, 20, 30, 0), (0, 0, 0, 128)])
    pixels = decode(saved(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 1].tolist() == [255, 255, 255]
    assert pixels[0, 2].tolist() == [127, 127, 127]


def test_gray_with_alpha_stays_gray() -> None:
    image = Image.new("LA", (2, 1))
    image.putdata([(90, 255), (90, 0)])
    assert decode(saved(image, "PNG")).tolist() == [[[90], [255]]]


def test_a_transparent_color_key_shows_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    for kind in ("PNG", "GIF"):
        assert decode(saved(palette, kind, transparency=1))[0, 1].tolist() == [255, 255, 255]
    gray = Image.fromarray(np.array([[7, 9]], dtype=np.uint8))
    assert decode(saved(gray, "PNG", transparency=7)).tolist() == [[[255], [9]]]
    wide = Image.fromarray(np.array([[257, 514]], dtype=np.uint16))
    assert decode(saved(wide, "PNG", transparency=514)).tolist() == [[[1], [255]]]


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    options: dict[str, object] = {"lossless": True} if kind == "WEBP" else {}
    pixels = decode(saved(first, kind, save_all=True, append_images=[second], **options))
    assert pixels.shape == (8, 8, 3)
    assert (pixels == [255, 0, 0]).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_rotation_is_applied(kind: str) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = saved(Image.fromarray(COLOR), kind, exif=exif)
        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image))
        assert np.array_equal(decode(data), expected), orientation


def test_orientation_6_turns_clockwise() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    top_row_marked = np.zeros((2, 3), np.uint8)
    top_row_marked[0] = 255
    pixels = decode(saved(Image.fromarray(top_row_marked), "PNG", exif=exif))
    assert pixels[:, :, 0].tolist() == [[0, 255]] * 3


def test_damaged_exif_counts_as_not_rotated() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "a maker with a long name"
    intact = saved(Image.fromarray(COLOR), "JPEG", exif=exif)
    assert decode(intact).shape == (20, 12, 3)
    cut = exif.tobytes()[:20]
    assert decode(saved(Image.fromarray(COLOR), "JPEG", exif=cut)).shape == (12, 20, 3)


# -- what is refused --


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP"])
def test_a_truncated_image_is_refused(kind: str) -> None:
    data = saved(Image.fromarray(COLOR), kind)
    for length in (3, 12, len(data) // 2, int(len(data) * 0.8)):
        with pytest.raises(BadImage):
            decode(data[:length])


def test_a_truncated_header_is_called_so() -> None:
    with pytest.raises(BadImage, match=r"^PNG: ends within its header$"):
        decode(saved(Image.fromarray(COLOR), "PNG")[:33])


def test_a_damaged_body_is_refused_with_the_reason() -> None:
    data = bytearray(saved(Image.fromarray(COLOR), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(BadImage, match=r"^PNG: .+"):
        decode(bytes(data))


@pytest.mark.parametrize(
    "data",
    [b"hello, I am a text file", b"\0" * 100, b"<svg/>", b"RIFF\0\0\0\0WAVEfmt ", b"%!PS-Adobe-3.0 EPSF"],
)
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(BadImage, match="not a JPEG, PNG"):
        decode(data)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(BadImage, match=r"^empty file$"):
        decode(b"")


def huge_images() -> dict[str, bytes]:
    gif = bytearray(saved(Image.new("P", (8, 8)), "GIF", disposal=2))
    gif[6:10] = struct.pack("<HH", 10_000, 6_000)
    bmp = bytearray(saved(Image.new("RGB", (8, 8)), "BMP"))
    bmp[18:26] = struct.pack("<ii", 10_000, 6_000)
    lossless = bytearray(saved(Image.new("RGB", (8, 8)), "WEBP", lossless=True))
    lossless[21:25] = struct.pack("<I", 9_999 | 5_999 << 14)
    lossy = bytearray(saved(Image.new("RGB", (8, 8)), "WEBP"))
    lossy[26:30] = struct.pack("<HH", 10_000, 6_000)
    extended = bytearray(saved(Image.new("RGB", (8, 8)), "WEBP", exif=Image.Exif().tobytes() + b"\0" * 8))
    assert (lossless[12:16], lossy[12:16], extended[12:16]) == (b"VP8L", b"VP8 ", b"VP8X")
    extended[24:30] = (9_999).to_bytes(3, "little") + (5_999).to_bytes(3, "little")
    return {
        "png": png_header(10_000, 6_000),
        "ppm": b"P6 10000 6000 255\n",
        "gif": bytes(gif),
        "bmp": bytes(bmp),
        "lossless": bytes(lossless),
        "lossy": bytes(lossy),
        "extended": bytes(extended),
    }


@pytest.mark.parametrize("kind", list(huge_images()))
def test_60_megapixels_are_refused_on_the_header(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match="10000 x 6000 pixels are more than the limit of 50000000"):
            decode(huge_images()[kind])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_the_size_is_checked_before_the_pixels_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise AssertionError("pixels were asked for")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(BadImage, match="more than the limit"):
        decode(png_header(10_000, 6_000))


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    # Each repeats the last pass over all pixels: 75 bytes that take 70 ms.
    data = saved(Image.new("L", (4000, 4000), 128), "JPEG", progressive=True)
    assert decode_fitted(data, 28, 1).shape == (28, 28, 1)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(BadImage, match="more than 100 scans"):
        decode_fitted(data[:-2] + 100_000 * scan + data[-2:], 28, 1)


def test_scans_are_not_counted_in_what_other_programs_put_into_a_jpeg() -> None:
    data, many = saved(Image.fromarray(COLOR), "JPEG"), 500 * b"\xff\xda"
    note = b"\xff\xe5" + struct.pack(">H", len(many) + 2) + many
    assert np.array_equal(decode(data[:2] + note + data[2:] + many), decode(data))


def test_a_tile_counts_as_what_it_takes_to_decode_it() -> None:
    # An image of one pixel, in a tile of 400 megapixels that a few bytes unpack to.
    packed = zlib.compress(bytes(1000))
    fields = {256: 1, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1}
    fields |= {322: 20_000, 323: 20_000, 324: 134, 325: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields.items())
    data = b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(4) + packed
    assert data.index(packed) == 134
    with pytest.raises(BadImage, match="20000 x 20000 pixels are more than the limit"):
        decode(data)


def test_only_our_limit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_png(COLOR)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow alone would refuse more than 20 pixels
    assert np.array_equal(decode(data), COLOR)
    assert np.array_equal(decode(data, max_pixels=240), COLOR)
    with pytest.raises(BadImage, match="20 x 12 pixels are more than the limit of 239"):
        decode(data, max_pixels=239)
    assert Image.MAX_IMAGE_PIXELS == 10


DAMAGED_KINDS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP")
WHOLE = {kind: saved(Image.fromarray(COLOR), kind) for kind in DAMAGED_KINDS}


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(DAMAGED_KINDS),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8
    ),
)
def test_damage_gives_pixels_or_a_one_line_reason(kind: str, changes: list[tuple[float, int]]) -> None:
    data = bytearray(WHOLE[kind])
    for place, value in changes:
        data[int(place * len(data))] = value
    reason = None
    try:
        pixels = decode(bytes(data), max_pixels=100_000)
    except BadImage as error:
        reason = str(error)
    if reason is None:
        assert (pixels.dtype, pixels.ndim) == (np.uint8, 3)
        assert pixels.shape[2] in (1, 3)
    else:
        assert reason
        assert reason.isprintable()


def test_threads_leave_the_warning_filters_as_they_were() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a maker with a long name"
    data = saved(Image.fromarray(COLOR), "JPEG", exif=exif.tobytes()[:20])
    before = list(warnings.filters)
    together = threading.Barrier(4)

    def many(_: int) -> None:
        together.wait()
        for _ in range(50):
            decode(data)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    assert list(warnings.filters) == before


# -- decoding no more than is needed --


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def oriented(image: Image.Image, orientation: int = 1, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, "JPEG", quality=90, exif=exif, **options)


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(int) - b.astype(int))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (24, {}),
        (71, {}),
        (142, {}),
        (35, {"progressive": True, "subsampling": 0}),
        (112, {"progressive": True}),
    ],
)
def test_a_reduced_jpeg_is_closer_to_the_whole_one_than_another_filter(
    photographs: list[Image.Image], size: int, options: dict[str, object]
) -> None:
    for image in photographs:
        data = oriented(image, **options)
        whole = Image.fromarray(decode(data))
        side, left = image.height, (image.width - image.height) // 2
        bicubic = whole.resize((size, size), Image.Resampling.BICUBIC, box=(left, 0, left + side, side))
        expected = fit_to(np.asarray(whole), size, 3)
        reduced = difference(decode_fitted(data, size, 3), expected)
        other = difference(np.asarray(bicubic), expected)
        assert 0 < reduced.mean() < min(other.mean(), 1.5)
        assert np.quantile(reduced, 0.99) <= np.quantile(other, 0.99)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_reduced_jpeg_is_turned_and_centered(photographs: list[Image.Image], orientation: int) -> None:
    """Sides that are no multiples of the divisor, too, and both channel counts."""
    for channels, cut in ((1, 5 * (orientation % 2)), (3, 5 - 5 * (orientation % 2))):
        data = oriented(photographs[1].crop((0, 0, 640 - cut, 427)), orientation)
        for resize, most in (("bilinear", 0.9), ("bicubic", 1.4), ("bicubic, whole", 1.4)):
            expected = fit_to(decode(data), 40, channels, resize)
            close = decode_fitted(data, 40, channels, resize)
            assert close.shape == (40, 40, channels)
            assert difference(close, expected).mean() < most, resize
            assert difference(np.roll(close, 1, axis=1), expected).mean() > 3


@pytest.mark.parametrize("shape", [(96, 130), (130, 96), (95, 95), (30, 200), (64, 64)])
def test_what_is_not_far_larger_and_what_is_no_jpeg_fits_exactly(shape: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    size = 64
    assert min(shape) < 2 * REDUCED_MARGIN * size
    for kind in ("JPEG", "PNG"):
        for orientation in (1, 6):
            exif = Image.Exif()
            exif[0x0112] = orientation
            data = saved(Image.fromarray(pixels), kind, exif=exif)
            for channels in (1, 3):
                expected = fit_to(decode(data), size, channels)
                assert np.array_equal(decode_fitted(data, size, channels), expected)
    large = saved(Image.fromarray(pixels), "PNG")
    assert np.array_equal(decode_fitted(large, 8, 3), fit_to(pixels, 8, 3))


def test_the_decoder_is_asked_for_the_reduced_size(
    photographs: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        JpegImageFile,
        "load_prepare",
        lambda image, before=JpegImageFile.load_prepare: (asked.append(image.size), before(image))[1],
    )
    data = oriented(photographs[0])
    for size in (143, 142, 72, 71, 36, 35):
        decode_fitted(data, size, 3)
    verify(data)
    whole, half, quarter, eighth = (640, 427), (320, 214), (160, 107), (80, 54)
    assert asked == [whole, half, half, quarter, quarter, eighth, eighth]


def test_a_bomb_is_refused_before_it_is_reduced() -> None:
    data = saved(Image.new("L", (400, 300)), "JPEG")
    for read in (lambda: decode_fitted(data, 8, 3, max_pixels=119_999), lambda: verify(data, max_pixels=100)):
        with pytest.raises(BadImage, match="400 x 300 pixels are more than the limit"):
            read()
    bomb = bytearray(data)
    start = bomb.index(b"\xff\xc0") + 5
    bomb[start : start + 4] = struct.pack(">HH", 60_000, 60_000)
    for function in (verify, lambda data: decode_fitted(data, 8, 3)):
        with pytest.raises(BadImage, match="60000 x 60000 pixels are more than the limit"):
            function(bytes(bomb))


PICTURES = {
    "JPEG": saved(Image.fromarray(np.kron(COLOR, np.ones((6, 6, 1), np.uint8))), "JPEG"),
    "progressive": saved(
        Image.fromarray(np.kron(COLOR, np.ones((6, 6, 1), np.uint8))), "JPEG", progressive=True
    ),
    "PNG": WHOLE["PNG"],
    "TIFF": saved(Image.fromarray(np.zeros((3, 3), np.float32)), "TIFF"),
}


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(list(PICTURES)),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    length=st.floats(0.2, 1) | st.just(1),
)
def test_verifying_and_fitting_refuse_what_decoding_refuses(
    kind: str, changes: list[tuple[float, int]], length: float
) -> None:
    data = bytearray(PICTURES[kind])
    for place, value in changes:
        data[int(place * len(data))] = value
    data = data[: int(length * len(data))]
    verdicts = []
    for function in (decode, verify, lambda data, **limit: decode_fitted(data, 8, 3, **limit)):
        try:
            function(bytes(data), max_pixels=100_000)
            verdicts.append("")
        except BadImage as error:
            verdicts.append(str(error))
    assert verdicts == verdicts[:1] * 3


# -- fitting --


def test_small_pictures_keep_their_channels_and_are_never_enlarged() -> None:
    for pixels, most in ((COLOR, 8), (GRAY[:, :, None], 8), (COLOR, 64)):
        picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        side = min(12, most)
        expected = fit_to(pixels, side, pixels.shape[2])
        assert np.array_equal(decode_small(saved(picture, "PNG"), most), expected)
    photograph = saved(Image.fromarray(load_sample_images().images[0]), "JPEG")
    difference = decode_small(photograph, 64).astype(int) - fit_to(decode(photograph), 64, 3)
    assert np.abs(difference).mean() < 2


def test_fitting_pixels_stay_as_they_are() -> None:
    square = np.ascontiguousarray(COLOR[:, :12])
    assert np.array_equal(fit_to(square, 12, 3), square)


def test_the_crop_is_centered() -> None:
    assert np.array_equal(fit_to(COLOR, 12, 3), COLOR[:, 4:16])
    tall = COLOR.transpose(1, 0, 2)
    assert np.array_equal(fit_to(tall, 12, 3), tall[4:16])


@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (60, 60), (8, 16)])
def test_scaling_equals_resize_then_crop(shape: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    scale = 32 / min(shape)
    whole = Image.fromarray(pixels).resize(
        (round(shape[1] * scale), round(shape[0] * scale)), Image.Resampling.BILINEAR
    )
    left, top = (whole.width - 32) // 2, (whole.height - 32) // 2
    expected = np.asarray(whole)[top : top + 32, left : left + 32].astype(int)
    assert np.abs(fit_to(pixels, 32, 3) - expected).max() <= 1


def test_channels_are_converted() -> None:
    gray = GRAY[:, 4:16, None]
    assert np.array_equal(fit_to(gray, 12, 3), np.repeat(gray, 3, axis=2))
    luma = COLOR[:, 4:16] @ [0.299, 0.587, 0.114]
    assert np.abs(fit_to(COLOR, 12, 1)[:, :, 0] - luma).max() < 1


def test_a_very_thin_image_takes_no_memory_for_its_long_side() -> None:
    thin = np.zeros((1, 5_000_000, 1), np.uint8)
    assert fit_to(thin, 64, 3).shape == (64, 64, 3)
