"""What `pmal data check` finds in sets that are wrong in a known way."""

import json

import numpy as np
import pytest

from pmal._runtime.progress import Silent
from pmal.data import check
from pmal.data.check import check_source, describe_check
from pmal.data.samples import ArrayStore, BadImage, Samples, Source

NAMES = ("ant", "bee", "cow")


class Shades:
    """Image i is uniformly `shades[i]`, and as wide as `widths[i]`; None cannot be read."""

    def __init__(self, origin, shades, widths=None):
        self.origin, self.shades, self.widths = origin, shades, widths or [4] * len(shades)

    def __len__(self):
        return len(self.shades)

    def name(self, row):
        return f"{self.origin}[{row}]"

    def read(self, row):
        if self.shades[row] is None:
            raise BadImage("truncated")
        return np.full((4, self.widths[row], 1), self.shades[row], np.uint8)


def part(origin, labels, shades, widths=None, names=NAMES):
    return Samples.whole(Shades(origin, shades, widths), np.array(labels, dtype=np.int64), names)


def checked(train, test=None, foreign=None):
    found = check_source(Source("zoo", train, test, foreign), Silent())
    assert json.loads(json.dumps(found)) == found
    return found


def places(groups):
    return [[(image["part"], image["name"], image["class"]) for image in group] for group in groups]


def test_counts_sizes_and_unreadable_images():
    train = part("a", [0, 0, 1, 1, 1], [1, 2, None, 4, 5], widths=[4, 4, 4, 6, 4])
    found = checked(train.at(np.array([1, 2, 3, 4])))["parts"]["train"]
    assert found == {
        "total": 4,
        "per_class": {"ant": 1, "bee": 3, "cow": 0},
        "sizes": {"4x4x1": 2, "6x4x1": 1},
        "unreadable": [{"id": 2, "name": "a[2]", "reason": "truncated"}],
        "conflicts": [],
    }


def test_unreadable_images_equal_nothing():
    found = checked(part("a", [0, 1, 0], [None, None, 7]), part("b", [0, 1], [None, 8]))
    assert len(found["parts"]["train"]["unreadable"]) == 2
    assert found["parts"]["train"]["conflicts"] == []
    assert found["conflicts_across"] == found["shared_across"] == []


def test_equal_images_in_different_classes_of_one_part():
    found = checked(part("a", [0, 1, 1, 2, 0, 0], [5, 6, 5, 5, 9, 9]))
    assert found["parts"]["train"]["conflicts"] == [
        [{"name": "a[0]", "class": "ant"}, {"name": "a[2]", "class": "bee"}, {"name": "a[3]", "class": "cow"}]
    ]
    assert found["conflicts_across"] == found["shared_across"] == []


def test_images_of_other_sizes_are_not_equal_although_their_bytes_are():
    wide, high = np.zeros((2, 3, 4, 1), np.uint8), np.zeros((2, 4, 3, 1), np.uint8)
    train = Samples.whole(ArrayStore("wide", wide), np.array([0, 0]), NAMES)
    test = Samples.whole(ArrayStore("high", high), np.array([1, 1]), NAMES)
    assert checked(train, test)["conflicts_across"] == []


def test_equal_images_across_parts():
    train = part("a", [0, 1, 2, 0], [10, 11, 12, 13])
    test = part("b", [1, 1, 2], [10, 11, 99])
    found = checked(train, test)
    assert places(found["conflicts_across"]) == [[("train", "a[0]", "ant"), ("test", "b[0]", "bee")]]
    assert places(found["shared_across"]) == [[("train", "a[1]", "bee"), ("test", "b[1]", "bee")]]
    assert found["parts"]["train"]["conflicts"] == found["parts"]["test"]["conflicts"] == []


def test_an_image_may_be_a_conflict_and_shared_at_once():
    found = checked(part("a", [0, 1], [7, 7]), part("b", [0, 0, 2], [7, 8, 8]))
    assert [len(found["parts"][name]["conflicts"]) for name in ("train", "test")] == [1, 1]
    assert places(found["conflicts_across"]) == [
        [("train", "a[0]", "ant"), ("train", "a[1]", "bee"), ("test", "b[0]", "ant")]
    ]
    assert places(found["shared_across"]) == [[("train", "a[0]", "ant"), ("test", "b[0]", "ant")]]


def test_another_set_s_images_are_unknown_whatever_their_class_is_called():
    found = checked(part("a", [0], [7]), part("b", [0], [8]), part("c", [0, 0], [7, 9]))
    assert places(found["conflicts_across"]) == [[("train", "a[0]", "ant"), ("foreign", "c[0]", "ant")]]
    assert found["shared_across"] == []


def test_positions_hold_over_several_chunks_and_gaps(monkeypatch):
    monkeypatch.setattr(check, "_CHUNK", 3)
    shades = [None if i % 4 == 0 else i for i in range(20)]
    train = part("a", [0] * 20, shades)
    test = part("b", [1] * 20, [100 + i for i in range(19)] + [14])
    assert places(checked(train, test)["conflicts_across"]) == [
        [("train", "a[14]", "ant"), ("test", "b[19]", "bee")]
    ]


def test_classes_of_the_same_name_are_counted_together_but_are_two():
    found = checked(part("a", [0, 1, 1, 2], [1, 2, 3, 1], names=("ant", "bee", "ant")))
    assert found["parts"]["train"]["per_class"] == {"ant": 2, "bee": 2}
    assert len(found["parts"]["train"]["conflicts"]) == 1


# -- for people --


def test_description_says_what_was_found():
    train = part("a", [0, 1, 2, 0, 0], [10, 11, 12, 12, None])
    text = describe_check(checked(train, part("b", [1, 1], [10, 11])))
    lines = [line.strip() for line in text.splitlines()]
    assert lines == [
        "zoo:",
        "train: 5 images, 3 classes",
        "images per class: 1 to 3",
        "sizes: 4x4x1 (4)",
        "unreadable: 1",
        "a[4]: truncated",
        "equal images in different classes: 1",
        "a[2] (cow) = a[3] (ant)",
        "test: 2 images, 3 classes",
        "images per class: 0 to 2",
        "sizes: 4x4x1 (2)",
        "unreadable: 0",
        "equal images in different classes: 0",
        "across parts:",
        "equal images in different classes: 1",
        "train a[0] (ant) = test b[0] (bee)",
        "equal images of one class in several parts: 1",
        "train a[1] (bee) = test b[1] (bee)",
    ]


def test_files_of_no_class_are_counted():
    source = Source("zoo", part("a", [0, 1], [1, 2]), loose=("zoo/x.png", "zoo/y.png"))
    text = describe_check(check_source(source, Silent()))
    assert "in no class folder, and left out: 2\n    zoo/x.png" in text
    assert "no class folder" not in describe_check(checked(part("a", [0, 1], [1, 2])))


def test_one_part_has_nothing_across():
    assert "across" not in describe_check(checked(part("a", [0, 1], [1, 2])))


def test_long_lists_are_cut_but_counted():
    many = list(range(30))
    text = describe_check(checked(part("a", [0] * 30, many), part("b", [1] * 30, many)))
    assert "equal images in different classes: 30" in text
    assert text.count(" = ") == check.LISTED
    assert "= test" in text
    one_image = describe_check(checked(part("a", [0, 1, 2] * 3, [5] * 9)))
    assert one_image.count(" = ") == 3
    assert one_image.endswith(" and 5 more")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "two\nlines", "bell\a\x1b[2J", "a\u2028b"])
def test_odd_names_stay_on_one_line(name):
    usual = checked(part("a", [0, 1, 2], [1, 1, None]), part("b", [0, 1], [1, 2]))
    names = (name, "bee", "cow")
    odd = check_source(
        Source(
            name, part(name, [0, 1, 2], [1, 1, None], names=names), part("b", [0, 1], [1, 2], names=names)
        ),
        Silent(),
    )
    assert name in odd["parts"]["train"]["per_class"]
    text = describe_check(odd)
    assert len(text.splitlines()) == len(describe_check(usual).splitlines())
    assert all(line.isprintable() for line in text.split("\n"))
    assert name.isprintable() == (f"({name})" in text)
