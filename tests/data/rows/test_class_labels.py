import numpy as np
import pytest

from pmal.data.rows.class_labels import class_indices, only_present
from pmal.errors import DataError


def test_names_are_sorted():
    labels, names = class_indices(["b", "a", "c", "a"], None, None, "labels")
    assert (labels.tolist(), names) == ([1, 0, 2, 0], ("a", "b", "c"))


def test_names_in_the_order_of_the_head():
    labels, names = class_indices(["b", "a"], ("c", "b", "a"), 3, "labels")
    assert (labels.tolist(), names) == ([1, 2], ("c", "b", "a"))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_numbers_are_rows(dtype):
    labels, names = class_indices(np.array([2, 0], dtype), ("x", "y", "z"), 3, "labels")
    assert (labels.tolist(), names, labels.dtype) == ([2, 0], ("x", "y", "z"), np.int64)


@pytest.mark.parametrize(
    ("given", "names", "rows", "message"),
    [
        (np.array([0, 3]), None, 3, "labels: sample 1 has label 3, but classes are 0 to 2"),
        (np.array([0, 2]), ("a", "b"), None, "labels: sample 1 has label 2, but classes are 0 to 1"),
        (np.array([0, -1]), None, None, "labels: sample 1 has label -1, but classes count from 0"),
        (np.array([0.0, 1.0]), None, 2, "labels: expected a vector of integers, got float64 of shape (2,)"),
        (np.array([[0], [1]]), None, 2, "labels: expected a vector of integers, got int64 of shape (2, 1)"),
        (["a", "b"], None, 3, "labels: 2 different classes, but the heads have 3: add class_names"),
        (
            ["a", "x"],
            ("a", "b"),
            None,
            "labels: sample 1 is of class 'x', which is not among the class_names",
        ),
        (["a", "b"], ("a", "b"), 3, "class_names: 2 names, but the heads have 3 classes"),
        (["a", "b"], ("a", "b", "a"), 3, "class_names: 'a' occurs twice"),
    ],
)
def test_wrong_labels(given, names, rows, message):
    with pytest.raises(DataError) as error:
        class_indices(given, names, rows, "labels")
    assert message in str(error.value)


def test_absent_classes_are_left_out():
    labels, names = only_present(np.array([1, 3, 3]), ("a", "b", "c", "d"), "labels")
    assert (labels.tolist(), names) == ([0, 1, 1], ("b", "d"))
    labels, names = only_present(np.array([1, 0]), ("a", "b", "c"), "labels")
    assert (labels.tolist(), names) == ([1, 0], ("a", "b"))
    labels, names = only_present(np.array([10**15, 7]), None, "labels")
    assert (labels.tolist(), names) == ([1, 0], ("7", str(10**15)))


def test_complete_classes_stay_as_they_are():
    labels, names = only_present(np.array([1, 0, 2]), None, "labels")
    assert (labels.tolist(), names) == ([1, 0, 2], None)


@pytest.mark.parametrize(("names", "named"), [(None, "class 4:"), (tuple("abcdef"), "class 'e':")])
def test_one_class_is_not_enough(names, named):
    with pytest.raises(DataError, match=f"all samples are of {named} two classes or more are needed"):
        only_present(np.array([4, 4]), names, "labels")
