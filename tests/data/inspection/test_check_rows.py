"""What is said of embeddings before they are trained on."""

import numpy as np

from pmal._runtime.progress import Silent
from pmal.data.inspection.check import check_source
from pmal.data.inspection.words import describe_check
from pmal.data.sources.readers import open_source
from tests.support.embeddings import WIDTH, rows, write_rows


def dirty(tmp_path):
    vectors, labels = rows(12)
    vectors[1, 0], vectors[2] = np.nan, 0
    vectors[4], vectors[5] = vectors[0], vectors[3]
    test, test_labels = rows(4, seed=2)
    test[3] = vectors[7]
    more = {"test_embeddings": test, "test_labels": test_labels, "embeddings": vectors, "labels": labels}
    return write_rows(tmp_path / "e.npz", **more)


def check(path):
    return check_source(open_source(str(path), None), Silent())


def test_everything_that_is_wrong_is_counted(tmp_path):
    path = dirty(tmp_path)
    found = check(path)
    train = found["parts"]["train"]
    assert (train["total"], train["readable"], train["width"]) == (12, 11, WIDTH)
    assert train["per_class"] == {"cat": 3, "dog": 3, "fox": 3, "owl": 3}
    problems = {problem["kind"]: problem["items"] for problem in found["problems"]}
    assert list(problems) == ["not finite", "equal conflict", "equal leak", "zero", "equal copy"]
    assert [bad["id"] for bad in problems["not finite"]] == [1]
    assert [row["name"] for row in problems["zero"]] == [f"{path}[2]"]

    def names(kind):
        return [[row["name"] for row in group["images"]] for group in problems[kind]]

    assert names("equal copy") == [[f"{path}[0]", f"{path}[4]"]]
    assert names("equal conflict") == [[f"{path}[3]", f"{path}[5]"]]
    assert names("equal leak") == [[f"{path}[7]", f"{path}: test_embeddings[3]"]]


def test_for_people(tmp_path):
    text = describe_check(check(dirty(tmp_path)), "e.npz")
    assert f"train: 12 rows of {WIDTH} numbers, 4 classes" in text
    assert "rows per class: 3 to 3" in text
    assert "1 row has NaN or infinite values: remove or embed" in text
    assert "1 group of equal rows in several parts" in text


def test_sound_rows(tmp_path):
    found = check(write_rows(tmp_path / "e.npz", 12))
    assert (found["usable"], found["problems"]) == (True, [])
    assert "sizes" not in describe_check(found, "e.npz")


def test_what_a_fit_would_reject_is_told_before_it(tmp_path):
    vectors, labels = rows(40)
    named = np.where(labels == labels[0], "unknown", labels)
    broken = np.where(np.arange(40)[:, None] < 20, np.nan, vectors)
    for more, words in (
        ({"embeddings": vectors[:4], "labels": labels[:4]}, "no test images of the known classes"),
        ({"embeddings": vectors, "labels": named}, "a known class is named 'unknown'"),
        ({"embeddings": broken, "labels": labels}, "rows unreadable"),
    ):
        found = check(write_rows(tmp_path / "e.npz", **more))
        assert not found["usable"]
        assert words in str(found["problems"][0]["items"])
