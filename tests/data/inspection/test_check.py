"""What `pmal data check` finds in sets that are wrong in a known way."""

import json

import numpy as np
import pytest
from PIL import Image

from pmal._runtime.progress import Silent
from pmal.data.decoding import fitting
from pmal.data.inspection import check
from pmal.data.inspection.check import check_source
from pmal.data.inspection.words import LISTED, describe_check, verdict
from pmal.data.samples import ArrayStore, BadImage, Samples, Source
from pmal.data.sources.readers import open_to_check

NAMES = ("ant", "bee", "cow")


class Noise:
    """Image i is noise drawn with `seeds[i]`, of 20 x `widths[i]` pixels; None cannot be read."""

    def __init__(self, origin, seeds, widths=None):
        self.origin, self.seeds, self.widths = origin, seeds, widths or [20] * len(seeds)

    def __len__(self):
        return len(self.seeds)

    def name(self, row):
        return f"{self.origin}[{row}]"

    def read(self, row):
        if self.seeds[row] is None:
            raise BadImage("truncated")
        random = np.random.default_rng(self.seeds[row])
        return random.integers(0, 256, (20, self.widths[row], 1), dtype=np.uint8)


def part(origin, labels, seeds, widths=None, names=NAMES):
    return Samples.whole(Noise(origin, seeds, widths), np.array(labels, dtype=np.int64), names)


def checked(train, test=None, foreign=None):
    found = check_source(Source("zoo", train, test, foreign), Silent())
    assert json.loads(json.dumps(found)) == found
    return found


def problems(found):
    return {problem["kind"]: problem["items"] for problem in found["problems"]}


def places(groups):
    return [[(image["part"], image["name"], image["class"]) for image in group["images"]] for group in groups]


def plenty(origin="a", start=0):
    """Nothing is wrong with these."""
    return part(origin, [0, 1, 2] * 6, list(range(start, start + 18)))


def test_counts_sizes_and_unreadable_images():
    train = part("a", [0, 0, 1, 1, 1], [1, 2, None, 4, 5], widths=[20, 20, 20, 26, 20])
    found = checked(train.at(np.array([1, 2, 3, 4])))
    seen = found["parts"]["train"]
    assert (seen["total"], seen["readable"]) == (4, 3)
    assert seen["per_class"] == {"ant": 1, "bee": 3, "cow": 0}
    assert seen["sizes"] == {"20x20x1": 2, "26x20x1": 1}
    assert seen["longer_side"] == {"min": 20, "median": 20.0, "max": 26}
    bad = {"id": 2, "part": "train", "name": "a[2]", "class": "bee", "reason": "truncated"}
    assert problems(found)["unreadable"] == [bad]
    assert problems(found)["empty"] == [{"class": "cow", "images": 0}]


def test_unreadable_images_equal_nothing():
    found = problems(checked(part("a", [0, 1, 0], [None, None, 7]), part("b", [0, 1], [None, 8])))
    assert len(found["unreadable"]) == 3
    assert not [kind for kind in found if kind.startswith(("equal", "near"))]


def test_equal_images_mean_different_things_by_where_they_are():
    train = part("a", [0, 1, 1, 2, 0, 0], [5, 6, 5, 8, 9, 9])
    found = problems(checked(train, part("b", [2, 2], [8, 10])))
    assert places(found["equal conflict"]) == [[("train", "a[0]", "ant"), ("train", "a[2]", "bee")]]
    assert places(found["equal leak"]) == [[("train", "a[3]", "cow"), ("test", "b[0]", "cow")]]
    assert places(found["equal copy"]) == [[("train", "a[4]", "ant"), ("train", "a[5]", "ant")]]
    assert not [kind for kind in found if kind.startswith("near")]


def test_images_of_other_sizes_are_not_equal_although_their_bytes_are():
    wide, high = np.zeros((2, 3, 4, 1), np.uint8), np.zeros((2, 4, 3, 1), np.uint8)
    train = Samples.whole(ArrayStore("wide", wide), np.array([0, 0]), NAMES)
    test = Samples.whole(ArrayStore("high", high), np.array([1, 1]), NAMES)
    assert "equal conflict" not in problems(checked(train, test))


def test_another_set_s_images_are_unknown_whatever_their_class_is_called():
    found = problems(checked(part("a", [0], [7]), part("b", [0], [8]), part("c", [0, 0], [7, 9])))
    assert places(found["equal conflict"]) == [[("train", "a[0]", "ant"), ("foreign", "c[0]", "ant")]]


def test_positions_hold_over_several_chunks_and_gaps(monkeypatch):
    monkeypatch.setattr(fitting, "_CHUNK", 3)
    seeds = [None if i % 4 == 0 else i for i in range(20)]
    test = part("b", [1] * 20, [100 + i for i in range(19)] + [14])
    found = problems(checked(part("a", [0] * 20, seeds), test))
    assert places(found["equal conflict"]) == [[("train", "a[14]", "ant"), ("test", "b[19]", "bee")]]


def test_classes_of_the_same_name_are_counted_together_but_are_two():
    found = checked(part("a", [0, 1, 1, 2], [1, 2, 3, 1], names=("ant", "bee", "ant")))
    assert found["parts"]["train"]["per_class"] == {"ant": 2, "bee": 2}
    assert len(problems(found)["equal conflict"]) == 1


def test_small_classes_are_named_with_their_readable_images():
    found = checked(part("a", [0] * 9 + [1] * 5 + [2] * 2, [*range(13), None, 20, 21]))
    assert problems(found)["few"] == [{"class": "cow", "images": 2}, {"class": "bee", "images": 4}]
    assert "1 of each class and 5 in all" in describe_check(found)


def test_nothing_is_wrong_with_good_data():
    found = checked(plenty())
    assert (found["usable"], found["problems"]) == (True, [])
    assert verdict(found, "my zoo") == "usable, nothing to fix; next: pmal fit 'my zoo' --out RUN"


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (part("a", [0] * 9, range(9), names=("ant",)), "at least 2"),
        (part("a", [0, 1], range(2), names=("ant", "bee")), "no test images of the known classes"),
        (part("a", [0, 1] * 9, [None] * 5 + list(range(13)), names=("ant", "bee")), "more than 20 %"),
        (part("a", [0] * 40 + [1], [*range(40), None], names=("ant", "bee")), "no image of class 'bee'"),
        (part("a", [0, 1] * 9, range(18), names=("ant", "unknown")), "a known class is named 'unknown'"),
    ],
)
def test_what_fit_would_refuse_is_said_first(train, reason):
    found = checked(train)
    assert not found["usable"]
    assert found["problems"][0]["kind"] == "refused"
    assert any(reason in item["reason"] for item in found["problems"][0]["items"])
    assert describe_check(found).splitlines()[-1].startswith("  verdict: `pmal fit` rejects the data")


def test_a_published_split_may_do_without_a_class():
    """Split 0 of MNIST has no 0 among its known classes, and six that it cannot do without."""
    names = tuple("0123456789")

    def mnist(labels):
        train, test = (
            part(o, labels, range(s, s + len(labels)), names=names) for o, s in (("a", 0), ("b", 500))
        )
        return check_source(Source("mnist", train, test), Silent())

    assert mnist([k for k in range(1, 10) for _ in range(9)])["usable"]
    assert mnist([k for k in range(9) for _ in range(9)])["problems"][0]["kind"] == "refused"


# -- folders --


def picture(seed, size=(90, 60)):
    """Soft shapes in color."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def zoo(tmp_path):
    for k, name in enumerate(NAMES):
        (tmp_path / "zoo" / name).mkdir(parents=True)
        for i in range(7):
            picture(10 * k + i).save(tmp_path / "zoo" / name / f"{i}.jpg", quality=95)
    return tmp_path / "zoo"


def found_in(folder):
    return check_source(open_to_check(str(folder), None), Silent())


def test_everything_is_found_in_one_pass_and_the_worst_stands_first(zoo):
    (zoo / "dog").mkdir()
    (zoo / "ant" / "notes.txt").write_text("no image")
    (zoo / "ant" / "Thumbs.db").write_text("of the desktop")
    (zoo / "README.md").write_text("loose")
    (zoo / "ant" / "cut.jpg").write_bytes((zoo / "ant" / "0.jpg").read_bytes()[:600])
    (zoo / "bee" / "same.jpg").write_bytes((zoo / "ant" / "1.jpg").read_bytes())
    picture(2, (60, 40)).save(zoo / "cow" / "again.png")
    Image.new("CMYK", (30, 30)).save(zoo / "cow" / "flat.jpg")
    picture(90, (200, 20)).save(zoo / "cow" / "long.png")
    picture(91, (1, 1)).save(zoo / "cow" / "dot.png")
    exif = Image.Exif()
    exif[274] = 6
    picture(92).save(zoo / "cow" / "turned.jpg", exif=exif)
    found = found_in(zoo)
    kinds = [problem["kind"] for problem in found["problems"]]
    assert kinds == sorted(kinds, key=check.SERIOUS.index)
    text = describe_check(found, "zoo")
    for line in [
        "1 class has no images: add images or remove the class\n      dog",
        "1 image cannot be read: repair or remove; `pmal fit` leaves out what it cannot read",
        "      ant/cut.jpg: JPEG",
        "ant/1.jpg = bee/same.jpg",
        "ant/2.jpg ~ cow/again.png",
        "cow/long.png: 200 x 20 px",
        "1 image has a side below 16 px: larger ones have more to learn from\n      cow/dot.png: 1 x 1 px",
        "1 file in a class folder is no image: remove; `pmal fit` counts such files as unreadable",
        "\n      ant/notes.txt",
        "1 file lies in no class folder",
        "1 file of the desktop: ignored",
        "1 image is turned by its EXIF data",
        "1 CMYK",
    ]:
        assert line in text
    assert {item["name"].split("/")[-1] for item in problems(found)["constant"]} == {"flat.jpg", "dot.png"}
    assert not found["usable"]


def test_one_unreadable_image_does_not_make_a_folder_unusable(zoo):
    (zoo / "ant" / "0.jpg").write_bytes(b"broken")
    found = found_in(zoo)
    assert found["usable"]
    assert [problem["kind"] for problem in found["problems"]] == ["unreadable"]
    assert verdict(found, "zoo").startswith(
        "usable; look first at 1 image cannot be read; then: pmal fit zoo"
    )


def test_a_test_part_that_cannot_be_used_does_not_end_the_check(zoo, tmp_path):
    parts = tmp_path / "parts"
    zoo.rename(tmp_path / "train")
    parts.mkdir()
    (tmp_path / "train").rename(parts / "train")
    (parts / "test" / "elk").mkdir(parents=True)
    picture(50).save(parts / "test" / "elk" / "0.jpg")
    found = found_in(parts)
    assert found["parts"]["train"]["total"] == 21
    assert "1 classes are not in the training part ('elk')" in found["problems"][0]["items"][0]["reason"]


# -- for people --


def test_long_lists_are_cut_but_counted_and_complete_in_json():
    many = list(range(30))
    found = checked(part("a", [0] * 30, many), part("b", [1] * 30, many))
    text = describe_check(found)
    assert "30 groups of equal images in different classes" in text
    assert text.count(" = test ") == LISTED
    assert "and 20 more" in text
    assert len(problems(found)["equal conflict"]) == 30
    one_image = describe_check(checked(part("a", [0, 1, 2] * 3, [5] * 9)))
    assert one_image.count(" = ") == 3
    assert " and 5 more\n" in one_image


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "two\nlines", "bell\a\x1b[2J", "a\u2028b"])
def test_odd_names_stay_on_one_line(name):
    def find(word):
        names = (word, "bee", "cow")
        train = part(word, [0, 1, 2], [1, 1, None], names=names)
        return check_source(Source(word, train, part("b", [0, 1], [1, 2], names=names)), Silent())

    assert name in find(name)["parts"]["train"]["per_class"]
    text = describe_check(find(name), name)
    assert len(text.splitlines()) == len(describe_check(find("ant"), "ant").splitlines())
    assert all(line.isprintable() for line in text.split("\n"))
