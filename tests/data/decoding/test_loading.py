"""Loading: every kind of bad image among good ones, counts that add up, and ids that never shift."""

import io
import json
import os
import struct
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from pmal.data.decoding import fitting
from pmal.data.decoding.decode import decode, encode_png, fit_to
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import (
    BadSample,
    SampleDataset,
    check_quarantine,
    load_images,
    probe_shape,
    verify_images,
)
from pmal.data.samples import ArrayStore, BadImage, Pixels, Samples
from pmal.data.sources.folder import open_folder
from pmal.data.sources.parquet import open_parquet, write_parquet
from pmal.errors import DataError

SIZE = 8


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def unique_image(number: int, mode: str = "RGB", size: tuple[int, int] = (10, 12)) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def huge_header() -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", 10_000, 6_000, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return head + b"\0\0\1\0IDAT"


def odd_files() -> dict[str, tuple[bytes, bool]]:
    """What people have on their disks, and whether it is to be decoded."""
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.fromarray(np.random.default_rng(9).integers(0, 65536, (12, 10), dtype=np.uint16))
    frames = [unique_image(k, "P") for k in (41, 42)]
    jpeg = saved(unique_image(1, size=(60, 60)), "JPEG")
    png = bytearray(saved(unique_image(2), "PNG"))
    png[len(png) // 2] ^= 0xFF
    return {
        "animated.gif": (saved(frames[0], "GIF", save_all=True, append_images=frames[1:]), True),
        "cmyk.jpg": (saved(unique_image(3, "CMYK"), "JPEG"), True),
        "empty.png": (b"", False),
        "flipped-bit.png": (bytes(png), False),
        "float.tif": (saved(Image.new("F", (9, 9)), "TIFF"), False),
        "gray.png": (saved(unique_image(4, "L"), "PNG"), True),
        "huge.png": (huge_header(), False),
        "notes.txt": (b"remember to take more pictures", False),
        "palette.png": (saved(unique_image(5, "P"), "PNG"), True),
        "really-a-png.jpg": (saved(unique_image(6), "PNG"), True),
        "rotated.jpg": (saved(unique_image(7), "JPEG", exif=exif), True),
        "sixteen-bit.png": (saved(wide, "PNG"), True),
        "transparent.png": (saved(unique_image(8, "RGBA"), "PNG"), True),
        "truncated.jpg": (jpeg[: len(jpeg) * 2 // 3], False),
    }


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    for name, (data, _) in odd_files().items():
        folder = tmp_path / "data" / ("even" if len(name) % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for number in range(30):
        (tmp_path / "data" / "odd" / f"good-{number:02}.png").write_bytes(
            saved(unique_image(100 + number), "PNG")
        )
    return tmp_path / "data"


def test_bad_images_are_listed_and_ids_never_shift(odd_folder: Path) -> None:
    samples = open_folder(odd_folder).train
    loaded = load_images(samples, ImageShape(SIZE, 3))

    decodable = {name: good for name, (_, good) in odd_files().items()}
    expected_bad = {name for name, good in decodable.items() if not good}
    assert {Path(bad.name).name for bad in loaded.quarantine} == expected_bad
    assert len(loaded.samples) + len(loaded.quarantine) == len(samples) == 44
    assert len(loaded.images) == len(loaded.samples)
    assert sorted(loaded.samples.ids.tolist() + [bad.id for bad in loaded.quarantine]) == list(range(44))

    for position, image in enumerate(loaded.images):
        original = Path(loaded.samples.name(position))
        expected = fit_to(decode(original.read_bytes()), SIZE, 3)
        assert np.array_equal(image.permute(1, 2, 0), expected), original
        label = int(loaded.samples.labels[position])
        assert samples.class_names[label] == original.parent.name
    for bad in loaded.quarantine:
        assert bad.name == samples.store.name(bad.id)
        assert bad.reason
        assert bad.reason.isprintable()


def test_reasons_tell_what_is_wrong(odd_folder: Path) -> None:
    loaded = load_images(open_folder(odd_folder).train, ImageShape(SIZE, 3))
    reasons = {Path(bad.name).name: bad.reason for bad in loaded.quarantine}
    assert reasons["empty.png"] == "empty file"
    assert reasons["huge.png"] == "10000 x 6000 pixels are more than the limit of 50000000"
    assert reasons["notes.txt"].startswith("not a JPEG, PNG")
    assert reasons["truncated.jpg"].startswith("JPEG: image file is truncated")
    assert reasons["float.tif"].startswith("floating-point pixels")
    assert reasons["flipped-bit.png"].startswith("PNG: ")
    json.dumps([vars(bad) for bad in loaded.quarantine], ensure_ascii=False).encode()


def test_parquet_gives_the_same_as_the_folder(odd_folder: Path, tmp_path: Path) -> None:
    folder = open_folder(odd_folder).train
    write_parquet(tmp_path / "x.parquet", {"train": folder})
    first = load_images(folder, ImageShape(SIZE, 1))
    second = load_images(open_parquet(tmp_path / "x.parquet").train, ImageShape(SIZE, 1))
    assert torch.equal(first.images, second.images)
    assert first.samples.ids.tolist() == second.samples.ids.tolist()
    assert [(bad.id, bad.reason) for bad in first.quarantine] == [
        (bad.id, bad.reason) for bad in second.quarantine
    ]


@pytest.mark.parametrize("many", [1, 10**6], ids=["processes", "threads"])
@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_verifying_finds_what_loading_finds(
    odd_folder: Path, tmp_path: Path, kind: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, told = open_folder(odd_folder).train, list[int]()
    if kind == "parquet":
        write_parquet(tmp_path / "x.parquet", {"train": samples})
        samples = open_parquet(tmp_path / "x.parquet").train
    loaded = load_images(samples, ImageShape(SIZE, 3))
    monkeypatch.setattr("pmal.data.decoding.loading.MANY_IMAGES", many)
    if many == 1:
        monkeypatch.setattr("pmal.data.decoding.loading.try_all", lambda *_: pytest.fail("not in processes"))
    readable, bad = verify_images(samples, workers=2, advance=told.append)
    assert sum(told) == len(samples)
    assert bad == loaded.quarantine
    assert readable.ids.tolist() == loaded.samples.ids.tolist()
    assert readable.labels.tolist() == loaded.samples.labels.tolist()


class ShadeStore:
    """Image i is uniformly i, except for some that cannot be read."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def name(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> Pixels:
        if row in self.bad:
            raise BadImage("it is bad")
        return np.full((3, 4, 1), row % 256, np.uint8)


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(list(range(200))),
    count=st.integers(1, 200),
    bad=st.sets(st.integers(0, 199), max_size=40),
)
def test_any_subset_keeps_each_id_with_its_pixels(order: list[int], count: int, bad: set[int]) -> None:
    whole = Samples.whole(ShadeStore(200, bad), np.arange(200) % 7, tuple("abcdefg"))
    subset = whole.at(np.array(order[:count]))
    reports: list[int] = []
    loaded = load_images(subset, ImageShape(2, 1), workers=3, advance=reports.append)
    assert loaded.samples.ids.tolist() == [k for k in order[:count] if k not in bad]
    assert loaded.images[:, 0, 0, 0].tolist() == loaded.samples.ids.tolist()
    assert loaded.samples.labels.tolist() == [k % 7 for k in loaded.samples.ids.tolist()]
    assert [each.id for each in loaded.quarantine] == [k for k in order[:count] if k in bad]
    assert sum(reports) == count


@pytest.mark.parametrize("size", [6, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_load_like_single_images(size: int, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    samples = Samples.whole(ArrayStore("x", pixels), np.arange(20) % 2, ("a", "b")).at(np.array([7, 3, 19]))
    reports: list[int] = []
    loaded = load_images(samples, ImageShape(size, channels), advance=reports.append)
    assert loaded.images.shape == (3, channels, size, size)
    assert loaded.images.is_contiguous()
    assert sum(reports) == 3
    for image, row in zip(loaded.images, (7, 3, 19), strict=True):
        assert np.array_equal(image.permute(1, 2, 0), fit_to(pixels[row], size, channels))
    loaded.images.zero_()
    assert pixels.any()


def test_errors_that_are_not_about_an_image_pass_through() -> None:
    class Broken(ShadeStore):
        def read(self, row: int) -> Pixels:
            raise DataError("x.parquet: not readable as Parquet")

    samples = Samples.whole(Broken(300, set()), np.zeros(300, int), ("a",))
    with pytest.raises(DataError, match="not readable as Parquet"):
        load_images(samples, ImageShape(2, 1))


# -- probing --


def stored(*shapes: tuple[int, int, int]) -> Samples:
    class Shapes(ShadeStore):
        def read(self, row: int) -> Pixels:
            if row in self.bad:
                raise BadImage("it is bad")
            return np.zeros(shapes[row], np.uint8)

    bad = {row for row, shape in enumerate(shapes) if shape == (0, 0, 0)}
    return Samples.whole(Shapes(len(shapes), bad), np.zeros(len(shapes), int), ("a",))


BAD = (0, 0, 0)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(28, 28, 1)] * 3, (28, 1)),
        ([(32, 32, 3), (32, 32, 1)], (32, 3)),
        ([(32, 32, 3), (40, 40, 3)], (64, 3)),
        ([(32, 40, 1), (32, 40, 1)], (64, 1)),
        ([BAD, (16, 16, 1), BAD], (16, 1)),
    ],
)
def test_the_shape_is_that_of_the_images(
    shapes: list[tuple[int, int, int]], expected: tuple[int, int]
) -> None:
    assert probe_shape(stored(*shapes)) == expected


def test_probing_reads_evenly_and_no_more_than_the_limit() -> None:
    read: list[int] = []

    class Counting(ShadeStore):
        def read(self, row: int) -> Pixels:
            read.append(row)
            return super().read(row)

    probe_shape(Samples.whole(Counting(1000, set()), np.zeros(1000, int), ("a",)), limit=11)
    assert len(read) == 11
    assert (read[0], read[-1]) == (0, 999)
    assert max(np.diff(read)) <= 101


def test_nothing_readable_is_an_error() -> None:
    with pytest.raises(DataError, match=r"none of 2 probed images is readable \(row 0: it is bad\)"):
        probe_shape(stored(BAD, BAD))


# -- too much quarantine --


def test_more_than_a_fifth_unreadable_stops() -> None:
    def bad(count: int) -> list[BadSample]:
        return [BadSample(k, f"{k}.png", "empty file") for k in range(count)]

    check_quarantine([], 0, "train")
    check_quarantine(bad(20), 100, "train")
    with pytest.raises(DataError) as caught:
        check_quarantine(bad(21), 100, "train")
    assert str(caught.value) == (
        "train: 21 of 100 images unreadable (first: 0.png: empty file), more than 20 %: repair or remove them"
    )


@pytest.mark.parametrize(("seconds", "workers", "several"), [(0, 0, False), (2e-3, 0, True), (0, 2, True)])
def test_small_images_are_not_worth_threads(monkeypatch, seconds, workers, several):
    monkeypatch.setattr(fitting, "usable_cores", lambda: 2)
    threads, told, now = set(), [], [0.0]
    monkeypatch.setattr(fitting, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def attempt(position):
        now[0] += seconds
        threads.add(threading.get_ident())
        if position % 100 == 7:
            raise BadImage("damaged")

    bad = fitting.try_all(300, attempt, workers, told.append)
    assert bad == [(7, "damaged"), (107, "damaged"), (207, "damaged")]
    assert sum(told) == 300
    assert (len(threads) > 1) == several
    assert fitting.try_all(0, attempt, workers, told.append) == []


# -- streaming --


@pytest.mark.slow
def test_streaming_in_spawned_workers_gives_the_loaded_images(odd_folder: Path, tmp_path: Path) -> None:
    folder = open_folder(odd_folder).train
    write_parquet(tmp_path / "x.parquet", {"train": folder})
    loaded = load_images(folder, ImageShape(SIZE, 3))
    both = [verify_images(samples)[0] for samples in (folder, open_parquet(tmp_path / "x.parquet").train)]
    dataset = ConcatDataset([SampleDataset(readable, ImageShape(SIZE, 3)) for readable in both])
    loader = DataLoader(dataset, batch_size=16, num_workers=1, multiprocessing_context="spawn")
    assert torch.equal(torch.cat(list(loader)), torch.cat([loaded.images, loaded.images]))


def test_large_photographs_are_the_same_however_they_are_read(tmp_path: Path) -> None:
    """Reduced while decoding: in memory, as a batch, one by one; the broken one is found by all."""
    for number in range(6):
        file = tmp_path / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(saved(unique_image(number, size=(90 + number, 64)), "JPEG"))
    os.truncate(tmp_path / "class1" / "5.jpg", 2000)
    samples = open_folder(tmp_path).train
    loaded = load_images(samples, ImageShape(SIZE, 3))
    readable, bad = verify_images(samples)
    assert bad == loaded.quarantine
    assert [Path(each.name).name for each in bad] == ["5.jpg"]
    dataset = SampleDataset(readable, ImageShape(SIZE, 3))
    assert torch.equal(dataset.__getitems__([4, 0, 2]), loaded.images[[4, 0, 2]])
    assert torch.equal(dataset[3], loaded.images[3])


def test_an_image_that_breaks_later_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode_png(np.zeros((4, 4, 1), np.uint8)))
    dataset = SampleDataset(open_folder(tmp_path).train, ImageShape(SIZE, 3))
    os.truncate(tmp_path / "b" / "1.png", 0)
    assert dataset[0].shape == (3, SIZE, SIZE)
    with pytest.raises(DataError, match=r"b/1\.png: empty file; it was readable when the run began"):
        dataset[1]
