"""Which cells a request means, and what is refused before anything runs."""

from collections import Counter

import pytest

from pmal.benchmark.ablations import GRIDS
from pmal.benchmark.grid import Request, plan, whole_numbers
from pmal.errors import PmalError, UsageError
from pmal.methods import METHODS


def cells(**words):
    return [one.cell for one in plan(Request(**words))]


def test_the_product_of_all_axes():
    found = cells(methods="softmax,pmal", data="mnist,cifar10", splits="0,2", seeds="0-1", recipe="strong")
    assert len(found) == len(set(found)) == 16
    assert {cell.family for cell in found} == {"arpl"}
    assert {cell.split for cell in found} == {0, 2}


def test_all_splits_of_a_family():
    assert [c.split for c in cells(data="cifar10", methods="softmax", splits="all")] == [0, 1, 2, 3, 4]
    assert cells(data="imagenet-lt", methods="softmax", recipe="imagenet-lt")[0].family == "lt"


def test_all_methods_are_every_one_but_those_at_the_cost_of_another():
    found = cells(methods="all", data="cifar10")
    assert [cell.method for cell in found] == list(METHODS)
    assert len({cell.epochs for cell in found}) == 1


def test_what_has_no_published_splits_has_one():
    assert [c.split for c in cells(data="fashion-mnist", family="all", methods="pmal", splits="all")] == [0]
    named = {"data": "fashion-mnist", "methods": "pmal", "settings": ['data.known=["0", "1"]']}
    assert [(c.family, c.split) for c in cells(**named)] == [("named", 0)]
    with pytest.raises(UsageError, match="family 'named' has split 0 only"):
        cells(**named, splits="0,1")
    random = cells(data="fashion-mnist", methods="pmal", splits="0-2", settings=["data.num_known=4"])
    assert [(c.family, c.split) for c in random] == [("random", 0), ("random", 1), ("random", 2)]


def test_a_recipe_is_chosen_by_the_data():
    assert {cell.source: cell.recipe for cell in cells(data="sample,cifar10", methods="pmal")} == {
        "sample": "sample",
        "cifar10": "strong",
    }


def test_a_folder_in_the_home_folder_and_an_encoder_of_another_library(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pets").mkdir()
    [cell] = cells(data="~/pets", methods="pmal", encoder="timm/resnet18")
    assert cell.config().data.source == str(tmp_path / "pets")
    assert cell.encoder == "timm/resnet18"


@pytest.mark.parametrize(
    ("grid", "count"), [("table3", 6), ("table4", 6), ("table5", 17), ("lambda", 4), ("fluctuation", 1)]
)
def test_named_grids(grid, count):
    found = plan(Request(grid=grid, data="tinyimagenet", settings=["optimization.weight=2"]))
    assert len({one.cell.name for one in found}) == len(found) == count
    assert {one.cell.method for one in found} == {"pmal"}


def test_the_base_of_a_grid_is_the_plain_cell():
    [plain] = cells(methods="pmal", data="tinyimagenet")
    for grid in ("table3", "table4", "table5", "lambda"):
        found = {one.cell: one.grid for one in plan(Request(grid=grid, data="tinyimagenet"))}
        assert found.pop(plain) is None
        assert set(found.values()) == {grid}


def test_grids_together_have_the_cells_that_they_share_once():
    found = plan(Request(grid="table3, table4,fluctuation", data="tinyimagenet"))
    assert len({one.cell for one in found}) == len(found) == 6 + 6 - 1 + 1
    assert Counter(one.grid for one in found) == {"table3": 5, "table4": 5, None: 1, "fluctuation": 1}
    assert [one.cell.measure for one in found] == ["fit"] * 11 + ["fluctuation"]
    with pytest.raises(UsageError, match="did you mean 'table4'"):
        plan(Request(grid="table3,tabel4", data="tinyimagenet"))


@pytest.mark.parametrize("option", ["grid", "methods", "data"])
@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_option_that_names_nothing_is_refused(option, text):
    with pytest.raises(UsageError, match=f"--{option}.*names nothing"):
        plan(Request(**{option: text}))


def test_odd_spellings_of_the_same_grid():
    plain = plan(Request(grid="table3"))
    assert plan(Request(grid=" table3 ,table3,", methods=" pmal,")) == plain


def test_the_command_of_a_variation_makes_the_grid():
    request = Request(grid="lambda", data="tinyimagenet", settings=["optimization.margin=0.8"])
    for one in plan(request):
        if one.grid:
            assert one.command.startswith("pmal benchmark --grid lambda --data tinyimagenet --family arpl ")
            assert one.command.endswith("--set optimization.margin=0.8")
        else:
            assert one.command == one.cell.command()


def test_the_six_combinations_of_table_3():
    found = [one.cell.config() for one in plan(Request(grid="table3", data="tinyimagenet"))]
    parts = [
        (
            c.mining.quality == "topology",
            c.mining.diversity == "gap",
            c.optimization.distance == "point-to-set",
        )
        for c in found
    ]
    yes, no = True, False
    assert parts == [
        (yes, no, no),
        (no, yes, no),
        (yes, no, yes),
        (no, yes, yes),
        (yes, yes, no),
        (yes, yes, yes),
    ]


def test_table_5_varies_one_setting_at_a_time():
    [base] = cells(methods="pmal", data="tinyimagenet")
    for one in plan(Request(grid="table5", data="tinyimagenet")):
        assert len(set(one.cell.settings) ^ set(base.settings)) <= 1
    assert [sweep.name for sweep in GRIDS["table5"]] == ["T", "epsilon", "U", "margin"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"methods": "pmol"}, "unknown method 'pmol': did you mean 'pmal'"),
        ({"data": "cifr10"}, "did you mean 'cifar10'"),
        ({"data": "cifar10", "family": "arpk"}, "did you mean 'arpl'"),
        ({"data": "cifar10", "splits": "7"}, "choose 0 to 4"),
        ({"grid": "tabel3"}, "did you mean 'table3'"),
        ({"recipe": "strng"}, "did you mean 'strong'"),
        ({"encoder": "oscrl"}, "did you mean 'oscri'"),
        ({"settings": ["mining.epsilom=1"]}, "did you mean 'mining.epsilon'"),
        ({"settings": ["mining.quality=topolgy"]}, "did you mean 'topology'"),
        ({"methods": "rpl", "settings": ["method_options.pints=2"]}, "did you mean 'points'"),
        ({"methods": "rpl", "settings": ["method_options.points=two"]}, "expected int"),
        ({"splits": "1-"}, "whole numbers"),
        ({"seeds": "-1"}, "whole numbers"),
        ({"seeds": ","}, "names nothing"),
        ({"grid": "table3", "methods": "softmax"}, "leave --methods out"),
        ({"data": "fashion-mnist", "family": "all", "splits": "1"}, "split 0 only"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(words, message):
    with pytest.raises(PmalError, match=message) as caught:
        plan(Request(**words))
    assert isinstance(caught.value, UsageError)
    assert "\n" not in str(caught.value)


def test_ranges():
    assert whole_numbers("3, 0-2,1", "--seeds") == [3, 0, 1, 2]


def test_each_method_with_the_recipe_that_it_was_published_with():
    found = cells(methods="softmax,arpl+cs,proser,cpn", data="cifar10,tinyimagenet", recipe="own")
    by_place = {(cell.method, cell.source): (cell.recipe, cell.encoder, cell.epochs) for cell in found}
    assert by_place["softmax", "cifar10"] == ("softmax", "oscri", 600)
    assert by_place["softmax", "tinyimagenet"] == ("softmax-tinyimagenet", "oscri", 600)
    assert by_place["arpl+cs", "tinyimagenet"] == ("arpl-tinyimagenet", "oscri", 100)
    assert by_place["proser", "cifar10"] == ("proser", "wide_resnet", 60)
    proser, cpn = (cell for cell in found if cell.source == "cifar10" and cell.method in ("proser", "cpn"))
    assert (proser.config().second_training.epochs, proser.config().second_training.learning_rate) == (
        10,
        0.001,
    )
    assert cpn.config().rejection.score == "probability"
    assert proser.settings == cpn.settings == ()  # all of it is in the recipe
    # Of the second training, with or without prototypes, and of nothing else.
    short = cells(methods="softmax,proser", data="cifar10", settings=("optimization.epochs=10",))
    assert [cell.settings for cell in short] == [(), ("optimization.epochs=10",)]
