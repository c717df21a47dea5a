"""The split tables against facts typed from the literature, not against the code that expands them."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.data.splits.protocols import (
    CIFAR10_ANIMALS,
    all_known,
    as_json,
    get_split,
    list_families,
    list_sets,
    named_split,
    random_split,
    split_defects,
    splits,
)
from pmal.errors import UsageError

PUBLISHED = ("sample", "mnist", "svhn", "cifar10", "cifar+10", "cifar+50", "tinyimagenet")
# data set, family: classes of the set, known, classes of the set of the unknown ones, unknown
COUNTS = {
    **{(s, f): (10, 6, 10, 4) for s in ("sample", "mnist", "svhn", "cifar10") for f in ("neal", "arpl")},
    **{(s, "paper"): (10, 4, 10, 6) for s in ("sample", "mnist", "svhn", "cifar10")},
    **{("cifar+10", f): (10, 4, 100, 10) for f in ("neal", "arpl", "paper")},
    **{("cifar+50", f): (10, 4, 100, 50) for f in ("neal", "arpl", "paper")},
    **{("tinyimagenet", f): (200, 20, 200, 180) for f in ("neal", "arpl", "paper")},
    ("imagenet-100", "first"): (1000, 100, 1000, 900),
    ("imagenet-200", "first"): (1000, 200, 1000, 800),
    ("imagenet-lt", "lt"): (1000, 1000, 0, 0),
}
FOREIGN = {"cifar+10", "cifar+50", "imagenet-lt"}


def test_every_set_and_family_is_in_the_table_of_counts() -> None:
    assert {(name, family) for name in list_sets() for family in list_families(name)} == set(COUNTS)


@pytest.mark.parametrize("name", sorted({name for name, _ in COUNTS}))
def test_counts_ranges_and_disjointness(name: str) -> None:
    families = [family for of, family in COUNTS if of == name]
    tables = {family: splits(name, family) for family in families}
    assert {len(table) for table in tables.values()} == {5 if name in PUBLISHED else 1}
    for family, index, split in (
        (f, i, split) for f, table in tables.items() for i, split in enumerate(table)
    ):
        known_classes, num_known, unknown_classes, num_unknown = COUNTS[name, family]
        assert (split.family, split.index, split.label) == (family, index, f"{family}/{index}")
        assert len(split.known) == len(set(split.known)) == num_known
        assert len(split.unknown) == len(set(split.unknown)) == num_unknown
        assert set(split.known) <= set(range(known_classes))
        assert set(split.unknown) <= set(range(unknown_classes))
        assert split.foreign == (name in FOREIGN)
        if not split.foreign:
            assert set(split.known) | set(split.unknown) == set(range(known_classes))
            assert list(split.unknown) == sorted(split.unknown)


@pytest.mark.parametrize(
    ("name", "family", "index", "known", "first_unknown"),
    [
        ("mnist", "arpl", 0, (2, 4, 5, 9, 8, 3), (0, 1, 6, 7)),
        ("sample", "arpl", 0, (2, 4, 5, 9, 8, 3), (0, 1, 6, 7)),
        ("svhn", "arpl", 4, (4, 9, 2, 7, 1, 0), (3, 5, 6, 8)),
        ("cifar10", "arpl", 0, (0, 6, 4, 9, 1, 7), (2, 3, 5, 8)),
        ("cifar10", "neal", 1, (0, 3, 5, 7, 8, 9), (1, 2, 4, 6)),
        ("cifar10", "paper", 1, (1, 2, 4, 6), (0, 3, 5, 7, 8, 9)),
        ("cifar+10", "arpl", 4, (1, 0, 9, 8), (33, 2, 3, 97, 46, 21, 64, 63, 88, 43)),
        ("cifar+10", "paper", 1, (0, 1, 8, 9), (7, 11, 66, 75, 77, 93, 95, 97, 98, 99)),
        ("cifar+50", "arpl", 0, (4, 7, 9, 1), (27, 94, 29, 77, 88)),
        ("imagenet-200", "first", 0, tuple(range(200)), (200, 201, 202)),
    ],
)
def test_exact_lists(
    name: str, family: str, index: int, known: tuple[int, ...], first_unknown: tuple[int, ...]
) -> None:
    split = get_split(name, family, index)
    assert split.known == known
    assert split.unknown[: len(first_unknown)] == first_unknown


def test_tinyimagenet_known_lists_keep_their_order() -> None:
    expected = (108, 147, 17, 58, 193, 123, 72, 144, 75, 167, 134, 14, 81, 171, 44, 197, 152, 66, 1, 133)
    assert get_split("tinyimagenet", "arpl", 0).known == expected


def test_paper_lists_are_the_complements_of_neal() -> None:
    for name in ("mnist", "svhn", "cifar10"):
        pairs = zip(splits(name, "neal"), splits(name, "paper"), strict=True)
        assert all(neal.unknown == paper.known for neal, paper in pairs)


def test_defects() -> None:
    found = {key: split_defects(*key) for key in COUNTS}
    same_fifty = ("cifar+50 splits 0, 1, 2, 3 and 4 have the same known and unknown classes",)
    assert {key: defects for key, defects in found.items() if defects} == {
        ("cifar10", "arpl"): ("cifar10 splits 0 and 1 have the same known classes",),
        ("svhn", "arpl"): ("svhn splits 0 and 1 have the same known classes",),
        ("cifar+10", "arpl"): ("cifar+10 splits 0, 1, 2 and 3 have animals among the known classes",),
        ("cifar+50", "arpl"): ("cifar+50 splits 0, 1, 2 and 3 have animals among the known classes",),
        ("cifar+50", "neal"): same_fifty,
        ("cifar+50", "paper"): same_fifty,
    }


def test_the_animals_of_cifar_10() -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert {names[k] for k in CIFAR10_ANIMALS} == {"bird", "cat", "deer", "dog", "frog", "horse"}


def test_json_shape() -> None:
    table = json.loads(json.dumps(as_json(splits("cifar10", "arpl"))))
    assert len(table) == 5
    assert table[3] == {"known": [8, 6, 1, 9, 0, 7], "unknown": [2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: list_families("cifar-10"), "did you mean 'cifar10'?"),
        (lambda: splits("tinyimagnet", "arpl"), "did you mean 'tinyimagenet'?"),
        (lambda: splits("mnist", "aprl"), "unknown split family of mnist 'aprl': did you mean 'arpl'?"),
        (lambda: splits("imagenet-lt", "arpl"), "Valid: lt"),
        (lambda: get_split("mnist", "arpl", 5), "mnist has no split 5 in family 'arpl': choose 0 to 4"),
        (lambda: get_split("mnist", "arpl", -1), "choose 0 to 4"),
        (lambda: get_split("imagenet-100", "first", 1), "only split 0 exists"),
        (lambda: named_split(["cat", "dog", "owl"], ["cat", "dgo"]), "did you mean 'dog'?"),
        (lambda: named_split(["cat", "dog", "owl"], ["cat", "cat"]), "'cat' is given 2 times"),
        (lambda: named_split(["cat", "cat", "owl"], ["cat", "owl"]), "belongs to 2 classes"),
        (lambda: named_split(["cat", "dog", "owl"], ["cat"]), "--known: a classifier needs at least 2"),
        (lambda: named_split(["cat", "dog", "owl"], []), "--known: a classifier needs at least 2"),
        (lambda: random_split(10, 1, seed=0), "--num-known: "),
        (lambda: random_split(10, 11, seed=0), "--num-known: "),
        (lambda: random_split(10, 5, seed=-1), "choose 0 or more"),
    ],
)
def test_mistakes_are_named_in_one_line(call, hint) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_named_split_keeps_the_given_order() -> None:
    split = named_split(["ant", "bee", "cat", "dog"], ["dog", "ant"])
    assert (split.known, split.unknown, split.label) == ((3, 0), (1, 2), "named/0")


@given(st.integers(2, 60), st.data())
def test_random_splits_are_reproducible_partitions(num_classes: int, data: st.DataObject) -> None:
    num_known = data.draw(st.integers(2, num_classes))
    seed = data.draw(st.integers(0, 2**32))
    split = random_split(num_classes, num_known, seed)
    assert split == random_split(num_classes, num_known, seed)
    assert sorted(split.known + split.unknown) == list(range(num_classes))
    assert list(split.known) == sorted(split.known)
    assert len(split.known) == num_known
    assert split.label == f"random/{seed}"


def test_random_splits_vary_with_the_seed_and_reach_every_class() -> None:
    drawn = [random_split(10, 6, seed).known for seed in range(40)]
    assert len(set(drawn)) > 20
    assert set().union(*drawn) == set(range(10))


def test_all_known_has_no_unknown() -> None:
    assert as_json([all_known(4)]) == [{"known": [0, 1, 2, 3], "unknown": []}]


def test_split_tables_are_readable_without_torch() -> None:
    read = "import sys, pmal.data.splits.protocols as p; p.splits('mnist', 'arpl')"
    code = f"{read}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
