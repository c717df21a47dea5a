import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.config import DataConfig
from pmal.data.protocols import Split, random_split
from pmal.data.samples import ArrayStore, Samples, Source
from pmal.data.task import choose_split, hold_out, learning_task, limited, make_task
from pmal.errors import DataError, UsageError

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
        "train": 36,
        "held out": 12,
        "test": 12,
        "unknown": 8,
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
    task = make_task(own, split, DataConfig(held_out=0.25))
    assert np.bincount(task.held_out.labels).tolist() == [2] * 10
    assert sorted([*task.train.ids, *task.held_out.ids]) == everything.train.ids.tolist()
    assert task.test.ids.tolist() == everything.test.ids.tolist()


def test_training_images_can_be_limited_per_class(own):
    split = choose_split(own, DataConfig())
    whole = make_task(own, split, DataConfig(held_out=0)).train
    few = make_task(own, split, DataConfig(held_out=0, limit=3)).train
    assert np.bincount(few.labels).tolist() == [3] * 10
    assert set(few.ids) < set(whole.ids)
    assert few.ids.tolist() == make_task(own, split, DataConfig(held_out=0, limit=3)).train.ids.tolist()
    assert len(make_task(own, split, DataConfig(held_out=0, limit=1000)).train) == len(whole)


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
