"""Rows of embeddings by the names that people give them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pmal.data.rows.table import check_width, holds_embeddings, read_rows, read_rows_of_one_class
from pmal.errors import DataError
from tests.support.embeddings import WIDTH, rows, write_pictures, write_rows


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def refusal(path, read=read_rows):
    with pytest.raises(DataError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("embeddings", "npz"),
        ("embedding", "parquet"),
        ("features", "fixed.parquet"),
        ("z", "safetensors"),
        ("z_0", "npz"),
    ],
)
def test_every_name_and_every_format(tmp_path, name, kind):
    path, (vectors, _) = tmp_path / f"e.{kind}", rows(10)
    if kind == "npz":
        npz(path, **{name: vectors})
    elif kind == "safetensors":
        save_file({name: torch.from_numpy(vectors)}, path)
    else:
        flat = pa.array(vectors.ravel())
        fixed = pa.FixedSizeListArray.from_arrays(flat, WIDTH)
        pq.write_table(pa.table({name: fixed if "fixed" in kind else pa.array(vectors.tolist())}), path)
    store = read_rows(path)
    assert store.vectors.dtype == np.float32
    np.testing.assert_array_equal(store.vectors, vectors)
    assert store.name(3) == f"{path}[3]"
    assert holds_embeddings(path)


def test_rows_are_named_and_shown_by_their_images(tmp_path):
    path = write_rows(tmp_path / "e.npz", 4, files=write_pictures(tmp_path, 4))
    store = read_rows(path)
    assert store.name(2) == str(tmp_path / "img" / "2.png")
    assert store.read(2).shape == (12, 12, 3)


def test_not_finite_rows_stay_and_are_told(tmp_path):
    vectors, _ = rows(5)
    wide = vectors.astype(np.float64)
    wide[1, 0], wide[3, 2] = np.nan, 1e300  # more than float32 holds
    store = read_rows(npz(tmp_path / "e.npz", embeddings=wide))
    assert store.finite(np.arange(5)).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.arange(3)}, "no 'embeddings' in it, numbers of shape (N, D); it has: labels"),
        ({"other": np.ones((3, 2))}, "no 'embeddings' in it"),
        ({"embeddings": np.ones(3)}, "embeddings: expected a matrix with columns, got shape (3,)"),
        ({"embeddings": np.ones((2, 3, 4))}, "embeddings: expected a matrix with columns"),
        ({"embeddings": np.ones((3, 0))}, "embeddings: expected a matrix with columns, got shape (3, 0)"),
        ({"embeddings": np.ones((0, 4))}, "embeddings: no samples"),
        ({"embeddings": np.ones((3, 2), int)}, "embeddings: int64: embeddings must be float16"),
        ({"embeddings": np.array([["a"], ["b"]])}, "embeddings: expected a list of texts"),
        ({"embeddings": np.array(["a", "b"])}, "embeddings: texts, not embeddings"),
        ({"embeddings": np.array([[{}]])}, "embeddings holds Python objects"),
        ({"embeddings": np.ones((3, 2)), "features": np.ones((3, 2))}, "both embeddings and features"),
        ({"z_0": np.ones((3, 2)), "z_1": np.ones((3, 2))}, "several embeddings of each row, z_0, z_1"),
        ({"embeddings": np.ones((3, 2)), "files": np.array(["a"])}, "files: 1 names for 3 rows"),
        ({"embeddings": np.ones((2, 2)), "files": np.array(["a", ""])}, "files: row 1 has an empty one"),
        ({"embeddings": np.ones((2, 2)), "files": np.arange(2)}, "files: int64 of shape (2,), not a list"),
    ],
)
def test_unusable_rows(tmp_path, arrays, message):
    assert message in refusal(npz(tmp_path / "e.npz", **arrays))


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty.npz").touch()
    (tmp_path / "text.npz").write_text("no zip")
    assert "an empty file" in refusal(tmp_path / "empty.npz")
    assert "not readable as .npz" in refusal(tmp_path / "text.npz")
    assert "no such file" in refusal(tmp_path / "gone.npz")
    assert "a folder" in refusal(tmp_path)
    for name in ("empty.npz", "text.npz", "gone.npz"):
        assert not holds_embeddings(tmp_path / name)
    assert not holds_embeddings(tmp_path)


def test_images_come_first(tmp_path):
    pixels = np.zeros((2, 8, 8), np.uint8)
    assert not holds_embeddings(npz(tmp_path / "e.npz", images=pixels, embeddings=np.ones((2, 3))))


def test_rows_of_one_class(tmp_path):
    vectors, _ = rows(4)
    alone = npz(tmp_path / "a.npz", embeddings=vectors, labels=np.array(["wolf"] * 4))
    assert len(read_rows_of_one_class(alone)) == 4
    mixed = npz(tmp_path / "b.npz", embeddings=vectors, labels=np.arange(4))
    assert "labels: rows of 4 classes" in refusal(mixed, read_rows_of_one_class)


def test_width(tmp_path):
    store = read_rows(npz(tmp_path / "e.npz", embeddings=np.ones((2, 3))))
    check_width(store, 3)
    with pytest.raises(DataError, match="embeddings of 3 numbers, but the model takes 5: embed with"):
        check_width(store, 5)
