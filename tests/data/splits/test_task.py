import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.config import DataConfig
from pmal.data.samples import ArrayStore, Samples, Source
from pmal.data.sources.readers import open_source
from pmal.data.splits.protocols import Split, get_split, list_families, list_sets, random_split
from pmal.data.splits.task import (
    choose_split,
    cost_of_few,
    hold_out,
    hold_out_enough,
    learning_task,
    limited,
    make_task,
)
from pmal.errors import DataError, UsageError
from pmal.rejection.calibration.thresholds import conformal_threshold, samples_needed

NAMES = tuple("abcdefghij")


def samples(labels, origin="here", names=NAMES):
    pixels = np.zeros((len(labels), 8, 8, 1), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(len(labels)) % 256
    return Samples.whole(ArrayStore(origin, pixels), np.asarray(labels), names)


@pytest.fixture
def digits():
    return Source("mnist", samples(np.arange(100) % 10), samples(np.arange(50) % 10, "test"), digits=True)


@pytest.fixture
def own():
    return Source("birds", samples(np.arange(100) % 10))


def test_parts_follow_the_split(digits):
    config = DataConfig(source="mnist", family="arpl", split=0)
    split = choose_split(digits, config)
    task = make_task(digits, split, config)
    assert split.label == "arpl/0"
    assert task.class_names == tuple(NAMES[k] for k in (2, 4, 5, 9, 8, 3))
    original = digits.train.labels[task.train.ids]
    assert [split.known[k] for k in task.train.labels] == original.tolist()
    assert set(task.unknown.labels.tolist()) == {0, 1, 6, 7}
    assert len(task.test) + len(task.unknown) == 50


def test_digits_are_not_flipped_unless_asked(digits, own):
    split = random_split(10, 6, 0)
    assert not make_task(digits, split, DataConfig()).flip
    assert make_task(digits, split, DataConfig(flip="yes")).flip
    assert make_task(own, split, DataConfig()).flip
    assert not make_task(own, split, DataConfig(flip="no")).flip
    with pytest.raises(UsageError, match=r"data\.flip"):
        make_task(own, split, DataConfig(flip="maybe"))


def test_customary_families(digits, own):
    assert choose_split(digits, DataConfig()).family == "arpl"
    assert choose_split(own, DataConfig()).family == "all"
    assert choose_split(own, DataConfig(num_known=4)).family == "random"
    assert len(choose_split(own, DataConfig(family="random")).known) == 6
    assert choose_split(own, DataConfig(known=("a", "b"))).known == (0, 1)
    with pytest.raises(UsageError, match="did you mean 'arpl'"):
        choose_split(digits, DataConfig(family="arlp"))


def test_unknowns_of_another_set():
    foreign = samples([7, 7, 3, 5], "cifar100")
    source = Source("cifar+10", samples(np.arange(40) % 10), samples(np.arange(40) % 10), foreign)
    task = make_task(source, Split((0, 1), (7, 5), "x", 0, foreign=True), DataConfig())
    assert task.unknown.labels.tolist() == [7, 7, 5]
    assert task.unknown.ids.tolist() == [0, 1, 3]
    everything = make_task(source, Split((0, 1), (), "lt", 0, foreign=True), DataConfig())
    assert len(everything.unknown) == 4
    with pytest.raises(DataError, match="unknown test images of split x/0 are missing"):
        make_task(
            Source("cifar+10", source.train, source.test), Split((0, 1), (7,), "x", 0, True), DataConfig()
        )


def test_held_out_part_is_disjoint_stratified_and_fixed(own):
    train, test = hold_out(own.train, 0.2)
    assert set(train.ids) | set(test.ids) == set(range(100))
    assert not set(train.ids) & set(test.ids)
    assert np.bincount(test.labels).tolist() == [2] * 10
    assert np.array_equal(hold_out(own.train, 0.2)[1].ids, test.ids)


def test_what_is_held_out_or_kept_is_from_all_over_a_class():
    """Images of a class often lie in the order in which they were taken."""
    many = samples(np.repeat([0, 1], 100), names=("a", "b"))
    for drawn in (hold_out(many, 0.2)[1], limited(many, 20)):
        assert np.bincount(drawn.labels).tolist() == [20, 20]
        for start in range(0, 200, 50):
            assert 3 < ((drawn.ids >= start) & (drawn.ids < start + 50)).sum() < 17


def test_only_what_was_drawn_from_the_training_images_file_is_counted(own, digits):
    split = Split(tuple(range(6)), tuple(range(6, 10)), "x", 0)
    assert make_task(own, split, DataConfig(held_out=0.25)).drawn() == {
        "train": 32,
        "held out": 16,
        "test": 12,
        "unknown": 40,
    }
    apart = make_task(digits, split, DataConfig(held_out=0.25))
    assert apart.drawn() == {"train": len(apart.train), "held out": len(apart.held_out)}


@given(st.lists(st.integers(1, 40), min_size=2, max_size=10), st.floats(0, 0.99))
def test_no_class_gives_its_last_training_image_away(per_class, share):
    labels = np.repeat(np.arange(len(per_class)), per_class)
    train, held_out = hold_out(samples(labels, names=NAMES[: len(per_class)]), share)
    assert np.bincount(train.labels, minlength=len(per_class)).min() >= 1
    assert len(train) + len(held_out) == sum(per_class)


def test_a_share_of_the_training_images_is_kept_for_the_threshold(own):
    split = choose_split(own, DataConfig())
    everything = make_task(own, split, DataConfig(held_out=0))
    assert everything.held_out is None
    task = make_task(own, split, DataConfig(held_out=0.5))
    assert np.bincount(task.held_out.labels).tolist() == [4] * 10
    assert sorted([*task.train.ids, *task.held_out.ids]) == everything.train.ids.tolist()
    assert task.test.ids.tolist() == everything.test.ids.tolist()


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ((70, 70, 70), 0.1, [14, 13, 13]),  # a tenth is 21: too few
        ((150, 150, 150), 0.1, [15, 15, 15]),  # a tenth is enough
        ((200, 20), 0.1, [37, 3]),  # the same share of both
        ((21, 9), 0.1, [7, 3]),  # a third is less than 40
        ((30, 3, 2), 0.1, [10, 1, 0]),  # 2 of each class stay
        ((70, 70, 70), 0.0, [0, 0, 0]),  # as asked
    ],
)
def test_enough_is_held_out_of_a_small_set(sizes, share, expected):
    small = samples(np.repeat(np.arange(len(sizes)), sizes), names=NAMES[: len(sizes)])
    train, held_out = hold_out_enough(small, share)
    assert np.bincount(held_out.labels, minlength=len(sizes)).tolist() == expected
    assert sorted([*train.ids, *held_out.ids]) == small.ids.tolist()
    assert set(hold_out(small, share)[1].ids) <= set(held_out.ids)
    assert np.array_equal(hold_out_enough(small, share)[1].ids, held_out.ids)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=10), st.floats(0.01, 0.3))
def test_what_is_held_out_beyond_the_share_leaves_two_of_each_class(sizes, share):
    whole = samples(np.repeat(np.arange(len(sizes)), sizes), names=NAMES[: len(sizes)])
    train, held_out = hold_out_enough(whole, share)
    left, asked = (
        np.bincount(part.labels, minlength=len(sizes)) for part in (train, hold_out(whole, share)[0])
    )
    assert (left >= np.minimum(asked, 2)).all()
    assert len(held_out) >= min(40, len(whole) // 3) or (left <= 2).all()


def test_a_classifier_of_arrays_holds_out_enough():
    task = learning_task(samples(np.arange(210) % 10), "fit(X, y)", DataConfig())
    assert np.bincount(task.held_out.labels).tolist() == [4] * 10


@pytest.mark.parametrize(("labels", "folds"), [([0], 0), ([0, 1, 2], 0), ([0, 0], 10), ([0, 1, 1], 10)])
def test_nothing_is_held_out_in_turn_if_every_class_has_one_sample(labels, folds):
    few = samples(labels, names=NAMES[: max(labels) + 1])
    task = learning_task(few, "fit(X, y)", DataConfig(folds=10))
    assert (task.folds, len(task.train), task.held_out) == (folds, len(labels), None)


@pytest.mark.parametrize(
    ("family", "share", "held_out", "train"),
    [
        ("arpl", 0.1, "57372022f684fcf3", "29cc598ddf81b657"),
        ("arpl", 0.02, "cf6eb894a1523e38", "18ca958db22dd435"),
        ("neal", 0.1, "028059525755399c", "c02fa19f45fa93da"),
        ("paper", 0.02, "1f90327a200c8096", "29109b977243c976"),
    ],
)
def test_the_parts_of_the_sample_are_those_of_all_published_figures(family, share, held_out, train):
    """As version 0.1 drew them."""
    source, config = open_source("sample", None), DataConfig(family=family, held_out=share)
    task = make_task(source, choose_split(source, config), config)
    found = [
        hashlib.sha256(part.ids.astype("<i8").tobytes()).hexdigest() for part in (task.held_out, task.train)
    ]
    assert [digest[:16] for digest in found] == [held_out, train]


SMALLEST = {"mnist": 5421, "svhn": 4659, "tinyimagenet": 500, "imagenet-100": 732, "imagenet-200": 732}
SMALLEST |= {"sample": 500, "cifar10": 5000, "cifar+10": 5000, "cifar+50": 5000, "imagenet-lt": 5}
"""Training images of the smallest class of each published set."""


def test_no_published_split_is_small():
    """The smallest share of a recipe for it holds out enough, so that nothing is added to it."""
    for name in list_sets():
        share = 0.05 if name == "imagenet-lt" else 0.02
        known = min(len(get_split(name, family, 0).known) for family in list_families(name))
        assert round(known * SMALLEST[name] * share) >= 40, name


def test_training_images_can_be_limited_per_class(own):
    split = choose_split(own, DataConfig())
    whole = make_task(own, split, DataConfig(held_out=0)).train
    few = make_task(own, split, DataConfig(held_out=0, limit=3)).train
    assert np.bincount(few.labels).tolist() == [3] * 10
    assert set(few.ids) < set(whole.ids)
    assert few.ids.tolist() == make_task(own, split, DataConfig(held_out=0, limit=3)).train.ids.tolist()
    assert len(make_task(own, split, DataConfig(held_out=0, limit=1000)).train) == len(whole)


def test_a_random_split_knows_classes_with_training_images_only(own):
    part = Source("part", own.train.at(own.train.labels % 2 == 0), own.train)
    split = choose_split(part, DataConfig(family="random", num_known=4, split=3))
    assert set(split.known) < {0, 2, 4, 6, 8}
    assert set(split.known) | set(split.unknown) == set(range(10))
    assert {1, 3, 5, 7, 9} < set(split.unknown)
    with pytest.raises(UsageError, match="6 known classes of 5 asked for"):
        choose_split(part, DataConfig(family="random", num_known=6))
    whole = choose_split(own, DataConfig(family="random", num_known=4, split=3))
    assert whole == random_split(10, 4, 3)


def test_a_long_tail_has_the_sizes_of_its_formula(own):
    """Of 10 classes of 8 samples each: 8, and a tenth root of 16 less from one class to the next."""
    split = random_split(10, 10, seed=2)
    whole = make_task(own, split, DataConfig(held_out=0))
    tails = [
        make_task(own, replace(split, index=draw), DataConfig(held_out=0, long_tail=16)) for draw in (0, 0, 1)
    ]
    sizes = [np.bincount(task.train.labels).tolist() for task in tails]
    assert sorted(sizes[0], reverse=True) == [round(8 * 16 ** (-k / 9)) or 1 for k in range(10)]
    assert sizes[0] == sizes[1]
    assert sorted(sizes[2]) == sorted(sizes[0]) != sizes[2] != sizes[0]  # other classes are large
    assert set(tails[0].train.ids) < set(whole.train.ids)
    assert tails[0].train.ids.tolist() == tails[1].train.ids.tolist()
    assert np.array_equal(tails[0].test.ids, whole.test.ids)  # the test images stay balanced
    with pytest.raises(UsageError, match=r"long_tail = 0.5: must be 0, or 1 or more"):
        DataConfig(long_tail=0.5)


def test_all_images_of_unknown_classes_are_tested_where_there_is_no_test_part(own):
    """None of them is trained on. The known test images are those that they would be without the list."""
    task = make_task(own, choose_split(own, DataConfig(known=("a", "b", "c"))), DataConfig(limit=4))
    assert np.bincount(task.unknown.labels).tolist() == [0] * 3 + [10] * 7
    whole = make_task(own, choose_split(own, DataConfig()), DataConfig()).test
    assert task.test.ids.tolist() == whole.ids[whole.labels < 3].tolist()


@pytest.mark.parametrize("config", [DataConfig(family="arpl"), DataConfig(known=("a", "b"))])
def test_a_source_with_a_test_part_is_tested_on_that_alone(digits, config):
    task = make_task(digits, choose_split(digits, config), config)
    assert task.unknown.store is digits.test.store
    assert np.bincount(task.unknown.labels).max() == 5


def test_all_known_has_no_unknown_part(own):
    assert make_task(own, choose_split(own, DataConfig()), DataConfig()).unknown is None


def test_known_classes_without_training_images_are_named():
    source = Source("tiny", samples([0, 0, 1, 1]), samples([0, 1, 2]))
    with pytest.raises(DataError, match=r"no training images of 1 known classes \('c'\)"):
        make_task(source, Split((0, 2), (1,), "x", 0), DataConfig())


def test_one_class_is_not_enough():
    source = Source("one", samples([0] * 20, names=("only",)))
    with pytest.raises(DataError, match="at least 2"):
        make_task(source, choose_split(source, DataConfig()), DataConfig())


@pytest.mark.parametrize(
    "settings",
    [
        {"family": "all", "known": ("a", "b")},
        {"family": "named", "known": ("a", "b"), "num_known": 3},
        {"family": "all", "num_known": 3},
        {"known": ("a", "b"), "split": 3},
        {"split": 3},
    ],
)
def test_settings_that_a_family_would_ignore_are_refused(own, settings):
    with pytest.raises(UsageError, match="does not go with family"):
        choose_split(own, DataConfig(**settings))


def test_small_classes_give_their_share_together():
    labels = np.repeat(np.arange(20), 9)
    train, held_out = hold_out(samples(labels, names=tuple("abcdefghijklmnopqrst")), 0.1)
    assert len(held_out) == 18
    assert np.bincount(held_out.labels, minlength=20).max() == 1
    single = samples(np.arange(10))
    train, held_out = hold_out(single, 0.5)
    assert len(train) == 10, "one of each class stays"


def test_a_class_called_unknown_is_refused():
    source = Source(
        "mine",
        Samples.whole(
            ArrayStore("a", np.zeros((20, 8, 8, 1), np.uint8)), np.arange(20) % 2, ("cat", "unknown")
        ),
    )
    with pytest.raises(DataError, match="a known class is named 'unknown'"):
        make_task(source, choose_split(source, DataConfig()), DataConfig())


def test_arrays_take_no_split():
    few = samples(np.arange(40) % 10)
    assert len(learning_task(few, "fit(X, y)", DataConfig(held_out=0, limit=2)).train) == 20
    for wrong in (DataConfig(family="random"), DataConfig(known=("a",)), DataConfig(split=1)):
        with pytest.raises(UsageError, match="all classes in y are known"):
            learning_task(few, "fit(X, y)", wrong)


def task_of(per_class, **settings):
    source = Source("few", samples(np.repeat(np.arange(4), per_class), names=NAMES[:4]))
    return make_task(source, choose_split(source, DataConfig()), DataConfig(**settings))


def test_five_images_of_each_class_are_divided_and_what_they_cost_is_said():
    task = task_of(5)
    assert np.bincount(task.test.labels).tolist() == [1] * 4
    assert np.bincount(task.train.labels).min() >= 2
    assert cost_of_few(task, 0.95) == (
        "few images: ACC rests on 4 test images, each of which is 25 points; 5 held-out images are too few "
        "for accept=0.95, which needs 19: nothing is rejected; with rejection.accept=0.83 the "
        "threshold accepts 55 to 99 % of known images (90 % range)"
    )


def test_the_cost_of_few_images_is_the_promise_of_the_threshold():
    task = task_of(20)
    text = cost_of_few(task, 0.9)
    count = len(task.held_out)
    low, high = conformal_threshold(range(count), 0.9).accepted_range
    assert f"on {count} held-out images: accepts {100 * low:.0f} to {100 * high:.0f} %" in text
    assert f"needs {samples_needed(0.99)}: nothing is rejected" in cost_of_few(task, 0.99)


def test_the_share_that_is_advised_can_be_promised():
    whole = task_of(100)
    for held_out in range(1, 40):
        few = replace(whole, held_out=whole.train.at(np.arange(held_out)))
        advised = re.search(r"rejection.accept=([0-9.]+)", cost_of_few(few, 0.999))
        assert conformal_threshold(range(held_out), float(advised[1])).guaranteed, held_out


def test_enough_images_cost_nothing():
    assert cost_of_few(task_of(100), 0.95) == ""
    assert cost_of_few(task_of(100, held_out=0), 0.95) == ""
