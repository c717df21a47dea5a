"""Files of embeddings, answered row by row."""

import numpy as np
import pytest

from pmal._runtime.progress import Silent
from pmal.data.decoding.fitting import ImageShape
from pmal.serving.answers import row_files
from pmal.serving.answers.image_files import find_files
from pmal.serving.answers.row_files import answer_paths
from tests.support.embeddings import WIDTH, rows, write_rows


def asked(paths, shape=(1, WIDTH)):
    """The names that are answered, and the errors."""
    errors, shapes = [], []

    def answer(images, names):
        shapes.append(images.shape)
        return [{"image": name} for name in names]

    blocks = list(answer_paths([str(path) for path in paths], ImageShape(*shape), errors, Silent(), answer))
    assert all(found == (len(block), WIDTH, 1, 1) for found, block in zip(shapes, blocks, strict=True))
    return [entry["image"] for block in blocks for entry in block], [(e.name, e.reason) for e in errors]


@pytest.mark.parametrize("block", [1, 3, 100])
def test_rows_in_order_without_those_that_are_not_finite(tmp_path, monkeypatch, block):
    monkeypatch.setattr(row_files, "BLOCK_ROWS", block)
    vectors, _ = rows(5)
    vectors[1] = np.nan
    np.savez(tmp_path / "a.npz", embeddings=vectors)
    write_rows(tmp_path / "b.npz", 2)
    names, errors = asked([tmp_path / "a.npz", tmp_path / "b.npz"])
    expected = [f"a.npz[{i}]" for i in (0, 2, 3, 4)] + ["b.npz[0]", "b.npz[1]"]
    assert [name.rpartition("/")[2] for name in names] == expected
    assert errors == [(f"{tmp_path}/a.npz[1]", "NaN or infinite values")]


def test_what_is_no_file_of_rows_does_not_stop_the_others(tmp_path):
    good = write_rows(tmp_path / "good.npz", 2)
    np.savez(tmp_path / "wide.npz", embeddings=np.ones((2, 9)))
    (tmp_path / "photo.jpg").write_bytes(b"x")
    names, errors = asked(
        [tmp_path / "wide.npz", tmp_path / "photo.jpg", tmp_path, tmp_path / "no.npz", good]
    )
    assert len(names) == 2
    reasons = [reason for _, reason in errors]
    assert reasons[0].startswith(f"embeddings of 9 numbers, but the model takes {WIDTH}: embed with")
    assert reasons[1].startswith("this model takes embeddings, not images: name a .npz")
    assert reasons[2].startswith("a folder: name a file of embeddings")
    assert reasons[3] == "no such file"


def test_a_model_of_images_says_so_to_arrays(tmp_path):
    files, bad = find_files([str(write_rows(tmp_path / "a.npz", 2))])
    assert not files
    assert "this model takes images" in bad[0].reason
    assert asked([tmp_path / "a.npz"], shape=(28, 1))[1] == [(bad[0].name, bad[0].reason)]
