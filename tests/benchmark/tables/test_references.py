"""What a method is compared with."""

import pytest

from pmal.benchmark.cells.cell import ENSEMBLE, FIT, make_cell
from pmal.benchmark.tables.groups import group_results, key_of, mean_passes
from pmal.benchmark.tables.references import (
    EQUAL,
    TWICE,
    equal_cost,
    equal_ensembles,
    first_classifiers,
    long_softmax,
    references,
)
from tests.benchmark.ledgers import made_up, record


def cell(method="pmal", epochs=100, settings=(), split=0):
    words = {"recipe": "strong", "epochs": epochs, "settings": settings}
    return make_cell(method, "cifar10", "arpl", split, 0, **words)


def groups_of(folder, *records):
    return group_results(made_up(folder, *records).results(FIT, ENSEMBLE)[0])


def group(groups, of):
    """The key and the results of a cell's group."""
    [found] = [(key, results) for key, results in groups.items() if of in [one.cell for one in results]]
    return found


def test_a_first_classifier_costs_its_own_training_alone(tmp_path):
    groups = groups_of(tmp_path, record(cell(), logit=0.9, softmax={"logit": 0.8}) | {"passes": 346.9})
    [[result]] = groups.values()
    [first] = first_classifiers([result])
    assert (result.passes, first.passes, first.auroc("logit")) == (346.9, 100, 0.8)
    assert mean_passes([first, first]) == 100


def test_the_cost_of_a_group_is_that_of_the_records_that_say_it(tmp_path):
    silent = record(cell(split=2), logit=0.5)
    del silent["about"]
    groups = groups_of(tmp_path, record(cell(), logit=0.5) | {"passes": 300}, silent)
    [(key, results)] = groups.items()
    assert mean_passes(results) == 300
    assert equal_cost(key, results).epochs == 300
    assert mean_passes(results[1:]) is None
    assert equal_cost(key, results[1:]) is None
    assert equal_ensembles(key, results[1:], groups) == []


@pytest.mark.parametrize(("second", "name"), [(0, TWICE), (100, TWICE), (150, None)])
def test_twice_the_epochs_are_a_comparison_of_two_equal_trainings_alone(tmp_path, second, name):
    pmal = cell(settings=[f"optimization.epochs={second}"])
    groups = groups_of(tmp_path, record(pmal, logit=0.5), record(cell("softmax", 200), logit=0.5))
    long = long_softmax(*group(groups, pmal), groups)
    assert (long and long[0]) == name


def test_equal_cost_comes_before_twice_the_epochs_and_only_with_a_split_in_common(tmp_path):
    twice = [record(cell("softmax", 200), logit=0.5), record(cell(), logit=0.5)]
    for split, name in ((0, EQUAL), (2, TWICE)):
        equal = record(cell("softmax", 347, split=split), logit=0.5)
        groups = groups_of(tmp_path / str(split), *twice, equal)
        assert long_softmax(*group(groups, cell()), groups)[0] == name


def test_ensembles_of_any_size_are_references_where_they_cost_as_much(tmp_path):
    sizes = [(2, 173), (3, 116), (4, 87), (3, 115), (5, 100)]
    others = [record(cell("softmax", epochs).together(size), logit=0.5) for size, epochs in sizes]
    groups = groups_of(tmp_path, record(cell(), logit=0.5), *others)
    found = equal_ensembles(*group(groups, cell()), groups)
    assert sorted((key.networks, key.epochs) for key in found) == [(2, 173), (3, 116), (4, 87)]
    assert list(references(*group(groups, cell()), groups)) == [
        "softmax, 100",
        *(f"{key.name}, {key.epochs}" for key in found),
    ]


def test_the_length_of_a_second_training_is_also_known_where_a_recipe_sets_it(tmp_path):
    said = record(cell(), logit=0.5)
    said["about"]["optimization"]["epochs"] = 300
    [[result]] = groups_of(tmp_path, said).values()
    assert key_of(result).epochs_text == "100 + 300"
