"""What is said of embeddings before they are trained on."""

import numpy as np

from pmal.data.inspection.check_rows import check_rows, describe_rows_check, holds_rows
from pmal.data.sources.readers import open_source
from tests.embeddings import WIDTH, rows, write_rows


def dirty(tmp_path):
    vectors, labels = rows(12)
    vectors[1, 0], vectors[2] = np.nan, 0
    vectors[4], vectors[5] = vectors[0], vectors[3]
    test, test_labels = rows(4, seed=2)
    test[3] = vectors[7]
    more = {"test_embeddings": test, "test_labels": test_labels, "embeddings": vectors, "labels": labels}
    return write_rows(tmp_path / "e.npz", **more)


def test_everything_that_is_wrong_is_counted(tmp_path):
    path = dirty(tmp_path)
    source = open_source(str(path), None)
    assert holds_rows(source)
    found = check_rows(source)
    train = found["parts"]["train"]
    assert (train["total"], train["width"]) == (12, WIDTH)
    assert train["per_class"] == {"cat": 3, "dog": 3, "fox": 3, "owl": 3}
    assert [bad["id"] for bad in train["unreadable"]] == [1]
    assert train["zero"] == [f"{path}[2]"]
    assert train["duplicates"] == [[f"{path}[0]", f"{path}[4]"]]
    assert train["conflicts"] == [[f"{path}[3]", f"{path}[5]"]]
    assert found["shared_across"] == [[f"{path}[7]", f"{path}: test_embeddings[3]"]]


def test_for_people(tmp_path):
    text = describe_rows_check(check_rows(open_source(str(dirty(tmp_path)), None)))
    assert f"train: 12 rows of {WIDTH} numbers, 4 classes" in text
    assert "NaN or infinite values: 1" in text
    assert "equal rows in both parts: 1" in text


def test_sound_rows(tmp_path):
    found = check_rows(open_source(str(write_rows(tmp_path / "e.npz", 12)), None))
    assert not any(
        found["parts"]["train"][name] for name in ("unreadable", "zero", "duplicates", "conflicts")
    )
    assert "both parts" not in describe_rows_check(found)


def test_images_are_none(tmp_path):
    assert not holds_rows(open_source("sample", None))
