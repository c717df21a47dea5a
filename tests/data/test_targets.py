"""Labels in, class numbers out, and back."""

import numpy as np
import pytest
import torch

from pmal.data.targets import ClassLabels, read_labels
from pmal.errors import DataError, UsageError

TEXT = np.array(["dog", "cat", "dog"], dtype=object)


@pytest.mark.parametrize(
    "y",
    [
        [7, 3, 7],
        np.array([7, 3, 7], np.uint8),
        torch.tensor([7, 3, 7]),
        np.array([7, 3, 7], object),
    ],
)
def test_integers_come_back_as_integers(y):
    classes = ClassLabels.of(y, 3)
    assert classes.kind == "integers"
    assert classes.values.tolist() == [3, 7]
    numbers = classes.numbers(y, 3)
    assert numbers.tolist() == [1, 0, 1]
    back = classes.labels(np.append(numbers, -1))
    assert back.dtype == np.int64
    assert back.tolist() == [7, 3, 7, -1]
    assert ClassLabels.named(classes.names, "integers").values.tolist() == [3, 7]


@pytest.mark.parametrize("y", [TEXT, TEXT.tolist(), TEXT.astype(str)])
def test_text_comes_back_as_objects_with_the_number_for_unknown(y):
    classes = ClassLabels.of(y, 3)
    assert classes.names == ("cat", "dog")
    back = classes.labels(np.array([1, -1, 0]))
    assert back.dtype == object
    assert back.tolist() == ["dog", -1, "cat"]
    assert (back == -1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "y", [["dog", -1, "cat"], np.array(["dog", -1, "cat"], object), ["dog", "-1", "cat"]]
)
def test_unknown_is_told_from_text_however_numpy_writes_it(y):
    assert ClassLabels.of(TEXT, 3).numbers(y, 3).tolist() == [1, -1, 0]


def test_a_class_can_be_added_at_the_end():
    assert ClassLabels.of([5, 9], 2).with_class(2).values.tolist() == [5, 9, 2]
    assert ClassLabels.of(TEXT, 3).with_class("ant").names == ("cat", "dog", "ant")
    for classes, name in ((ClassLabels.of(TEXT, 3), 4), (ClassLabels.of([5, 9], 2), "four")):
        with pytest.raises(DataError, match="as those of the others are"):
            classes.with_class(name)
    with pytest.raises(DataError, match="class 9 exists already"):
        ClassLabels.of([5, 9], 2).with_class(9)
    with pytest.raises(DataError, match="other than -1"):
        ClassLabels.of([5, 9], 2).with_class(-1)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([[1], [2], [3]], r"y has shape \(3, 1\) for 3 samples"),
        ([1, 2], r"y has shape \(2,\) for 3 samples"),
        ([1.5, 2.0, 3.0], r"y\[0\] is 1.5, a continuous value: labels are whole numbers or text"),
        ([1.0, np.nan, 3.0], r"y\[1\] is nan, a continuous value"),
        (np.array(["a", None, "b"], object), r"y\[1\] is None"),
        (np.array(["a", 3, "b"], object), r"y\[1\] is 3"),
        (["a", np.nan, "b"], r"y\[1\] is nan: labels are numbers or text, of one kind"),
        (("a", 3, "b"), r"y\[1\] is 3"),
    ],
)
def test_other_labels_are_refused_by_sample(y, message):
    with pytest.raises(DataError, match=message):
        read_labels(y, 3)


def test_training_labels_have_no_unknown_and_others_must_be_classes():
    with pytest.raises(DataError, match=r"y\[1\] is -1, which stands for unknown"):
        ClassLabels.of([4, -1, 5], 3)
    with pytest.raises(DataError, match=r"y\[1\] is -1"):
        ClassLabels.of(["a", -1, "b"], 3)
    with pytest.raises(DataError, match=r"y\[2\] is 'cow', no class of this model: write -1"):
        ClassLabels.of(TEXT, 3).numbers(["dog", "cat", "cow"], 3)


@pytest.mark.parametrize(
    ("y", "kind", "back"),
    [
        ([2.0, 5.0, 2.0], "floats", [2.0, -1.0, 5.0]),
        ([True, False, True], "booleans", [False, -1, True]),
        (np.array([True, False, True], object), "booleans", [False, -1, True]),
    ],
)
def test_numbers_of_every_kind_come_back(y, kind, back):
    classes = ClassLabels.of(y, 3)
    assert classes.kind == kind
    found = classes.labels(np.array([0, -1, 1]))
    assert found.dtype.kind in "if"
    assert found.tolist() == back
    assert ClassLabels.named(classes.names, kind).values.tolist() == classes.values.tolist()
    assert classes.numbers([*back], 3).tolist() == [0, -1, 1]


@pytest.mark.parametrize(("y", "unknown"), [(TEXT, "unknown"), ([4, 9, 4], "none"), ([4, 9, 4], -7)])
def test_unknown_is_what_the_caller_calls_it(y, unknown):
    classes = ClassLabels.of(y, 3, unknown)
    back = classes.labels(np.array([0, -1, 1]))
    assert back[1] == unknown
    assert back.dtype.kind == ("U" if y is TEXT else "O" if unknown == "none" else "i")
    assert classes.numbers(back.tolist(), 3).tolist() == [0, -1, 1]
    with pytest.raises(DataError, match=r"y\[0\] is .*, which stands for unknown"):
        ClassLabels.of([unknown, *list(y)[1:]], 3, unknown)


def test_a_label_for_unknown_that_could_not_be_told_is_refused():
    for unknown in (None, float("nan"), True, ("a",)):
        with pytest.raises(UsageError, match="unknown_label is"):
            ClassLabels.of(TEXT, 3, unknown)
    with pytest.raises(DataError, match="which is a class as well"):
        ClassLabels(np.array([1, 2]), 2)
