"""SVHN's .mat files, written by scipy in the shapes that the authors publish."""

from pathlib import Path

import numpy as np
import pytest

from pmal.data.sources.published.svhn import open_svhn
from pmal.errors import DataError, Interrupted
from tests.data.sources.published.svhn_files import write_part, write_svhn


def refusal(folder: Path, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_svhn(folder)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_images_come_first_and_ten_means_zero(tmp_path):
    train, _ = write_part(tmp_path / "train_32x32.mat", 23)
    test, _ = write_part(tmp_path / "test_32x32.mat", 12)
    source = open_svhn(tmp_path)
    assert source.test is not None
    assert source.train.labels.tolist() == [*range(1, 10), 0, *range(1, 10), 0, 1, 2, 3]
    assert source.train.class_names[source.train.labels[9]] == "0"
    for samples, images in ((source.train, train), (source.test, test)):
        assert len(samples) == images.shape[3]
        for i in range(len(samples)):
            np.testing.assert_array_equal(samples.read(i), images[:, :, :, i])
    assert source.name == "svhn"
    assert source.digits


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"X": None}, "holds no X and y"),
        ({"y": None}, "holds no X and y"),
        ({"X": np.zeros((32, 32, 12), np.uint8)}, "X is uint8"),
        ({"X": np.zeros((12, 32, 32, 3), np.uint8)}, "X is uint8"),
        ({"X": np.zeros((32, 32, 3, 12, 2), np.uint8)}, "X is uint8"),
        ({"X": np.zeros((32, 32, 3, 12))}, "X is float64"),
        ({"X": np.zeros((32, 32, 3, 0), np.uint8)}, "X is uint8"),
        ({"X": np.array([{"a": 1}] * 3, dtype=object)}, "X is object"),
        ({"y": np.ones((11, 1), np.uint8)}, r"y is uint8 \(11, 1\)"),
        ({"y": np.ones((12, 1))}, "y is float64"),
        ({"y": np.array([[1, 2, 3, 0, 1, 1, 1, 1, 1, 1, 1, 1]], np.uint8)}, "label 0 of image 3"),
        ({"y": np.array([[1, 2, 3, 11, 1, 1, 1, 1, 1, 1, 1, 1]], np.uint8)}, "label 11 of image 3"),
    ],
)
def test_wrong_content_is_refused(tmp_path, changed, reason):
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    write_part(path, 12, **changed)
    with pytest.raises(DataError, match=reason) as caught:
        open_svhn(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 60, 127, 128, 140, 1000, -100, -1])
def test_a_cut_off_file_is_refused(tmp_path, keep):
    path = write_svhn(tmp_path) / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    refusal(tmp_path, path)


@pytest.mark.parametrize("data", [b"<html>404</html>" * 50, b"\x89HDF\r\n\x1a\n" + bytes(600), bytes(500)])
def test_another_format_is_refused(tmp_path, data):
    path = write_svhn(tmp_path) / "train_32x32.mat"
    path.write_bytes(data)
    refusal(tmp_path, path)


def test_an_interruption_is_no_fault_of_the_file(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Interrupted(2, "interrupted")

    monkeypatch.setattr("scipy.io.loadmat", stop)
    with pytest.raises(Interrupted):
        open_svhn(write_svhn(tmp_path))


def test_a_missing_part_is_named(tmp_path):
    (write_svhn(tmp_path) / "test_32x32.mat").unlink()
    assert "no such file" in refusal(tmp_path, tmp_path / "test_32x32.mat")


def test_the_real_svhn_has_the_published_counts(real_data):
    folder = real_data / "svhn"
    if not (folder / "train_32x32.mat").is_file():
        pytest.skip("SVHN's .mat files are not under $PMAL_DATA/svhn")
    source = open_svhn(folder)
    assert source.test is not None
    assert (len(source.train), len(source.test)) == (73_257, 26_032)
    assert np.bincount(source.test.labels).tolist() == [
        1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595,
    ]  # fmt: skip
