"""idx files are written here byte by byte from the format's description, then read back."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.data.sources.published.idx import open_mnist, read_idx
from pmal.errors import DataError
from tests.data.sources.published.idx_files import idx_bytes, write_set

TEN = tuple("0123456789")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@given(
    shape=st.one_of(
        st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5))
    ),
    packed=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_what_was_written_is_read(tmp_path_factory, shape, packed):
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    np.testing.assert_array_equal(read_idx(path), array)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("style", ["{part}-{kind}-idx{axes}-ubyte", "{part}-{kind}.idx{axes}-ubyte"])
def test_both_parts_with_either_name_packed_or_not(tmp_path, style, packed):
    arrays = write_set(tmp_path, style, packed)
    source = open_mnist(tmp_path, "mnist", TEN)
    for samples, part in ((source.train, "train"), (source.test, "t10k")):
        assert samples is not None
        np.testing.assert_array_equal(samples.labels, arrays[part, "labels"])
        np.testing.assert_array_equal(samples.ids, np.arange(len(samples)))
        np.testing.assert_array_equal(samples.read(3)[:, :, 0], arrays[part, "images"][3])
        assert samples.read(3).shape == (6, 4, 1)
        assert f"{part}-images" in samples.name(3)
        assert samples.name(3).endswith("[3]")
    assert (source.name, source.train.class_names) == ("mnist", TEN)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_off_file_is_refused(tmp_path, packed):
    whole = idx_bytes(np.ones((3, 4, 4), dtype=np.uint8))
    path = tmp_path / "train-images-idx3-ubyte"
    for keep in (0, 1, 3, 7, 15, 17, -1):
        path.write_bytes(gzip.compress(whole[:keep]) if packed else whole[:keep])
        assert "cut off" in refusal(path) or keep in (0, 1, 3)


@pytest.mark.parametrize("keep", [5, 12, 20, -9, -1])
def test_a_cut_off_gzip_stream_is_refused(tmp_path, keep):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4)))[:keep])
    refusal(path)


def test_a_damaged_gzip_stream_is_refused(tmp_path):
    data = bytearray(gzip.compress(idx_bytes(np.arange(48, dtype=np.uint8).reshape(3, 4, 4))))
    path = tmp_path / "images.gz"
    for place in (-6, 10):  # the checksum; the first block
        data[place] ^= 255
        path.write_bytes(data)
        assert "fetch the file again" in refusal(path)
        data[place] ^= 255


@pytest.mark.parametrize("packed", [False, True])
def test_more_values_than_declared_are_refused(tmp_path, packed):
    data = idx_bytes(np.ones((3, 4, 4), dtype=np.uint8)) + b"x"
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert "more than the 48 values" in refusal(path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_that_declares_terabytes_allocates_nothing(tmp_path, packed):
    data = struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(data) if packed else data)
    assert "declares" in refusal(path)


def test_a_header_that_declares_more_than_gzip_can_hold_is_refused_unread(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**11, 2**8, 2**8)))
    assert f"declares {2**27} values" in refusal(path)


def test_as_much_as_gzip_can_hold_is_read(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((100, 300, 300), np.uint8))))
    assert read_idx(path).shape == (100, 300, 300)


@pytest.mark.parametrize(
    "magic", [b"\x89PNG", b"\0\0\x0d\x03", b"\0\0\x08\x00", b"\0\0\x08\xff", b"\0\1\x08\x03", b"<htm"]
)
def test_another_format_is_refused(tmp_path, magic):
    path = tmp_path / "images"
    path.write_bytes(magic + bytes(100))
    assert "not an idx file" in refusal(path)


def test_a_missing_file_is_named(tmp_path):
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        open_mnist(tmp_path, "mnist", TEN)


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("train-labels-idx1-ubyte", np.zeros(6, np.uint8), "6 labels for 7 images"),
        ("train-labels-idx1-ubyte", np.array([0, 0, 0, 10, 0, 0, 0], np.uint8), "label 10 of image 3"),
        ("train-labels-idx1-ubyte", np.zeros((7, 2, 2), np.uint8), "mixed up"),
        ("train-images-idx3-ubyte", np.zeros(7, np.uint8), "mixed up"),
        ("train-images-idx3-ubyte", np.zeros((0, 6, 4), np.uint8), "no images"),
        ("train-images-idx3-ubyte", np.zeros((7, 0, 4), np.uint8), "no images"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, name, array, reason):
    write_set(tmp_path)
    (tmp_path / name).write_bytes(idx_bytes(array))
    with pytest.raises(DataError, match=reason) as caught:
        open_mnist(tmp_path, "mnist", TEN)
    assert name in str(caught.value)


PUBLISHED_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def test_the_real_mnist_is_the_published_one(real_data):
    folder = real_data / "mnist"
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("MNIST's idx files are not under $PMAL_DATA/mnist")
    for name, md5 in PUBLISHED_MD5.items():
        array = read_idx(folder / f"{name}.gz")
        assert hashlib.md5(idx_bytes(array)).hexdigest() == md5
    source = open_mnist(folder, "mnist", TEN)
    assert source.test is not None
    assert (len(source.train), len(source.test)) == (60_000, 10_000)


def test_the_real_fashion_mnist_has_equal_classes():
    if not DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    source = open_mnist(DEBIAN, "fashion-mnist", TEN)
    assert source.test is not None
    assert np.bincount(source.train.labels).tolist() == [6000] * 10
    assert np.bincount(source.test.labels).tolist() == [1000] * 10
