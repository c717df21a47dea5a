"""Names of cells: readable, different for different cells, and the same for those of earlier versions."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.benchmark.ablations import GRIDS
from pmal.benchmark.cells.cell import ENSEMBLE, FIT, Cell, cell_of, make_cell, plain_settings
from pmal.config import parse_assignment
from pmal.errors import UsageError
from pmal.methods import METHODS

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_a_cell_is_named_by_all_that_decides_it():
    cell = make_cell(
        "pmal", "cifar10", "arpl", 2, 1, recipe="strong", epochs=50, settings=["optimization.weight=2"]
    )
    assert cell.name == "pmal/cifar10-arpl2-oscri-strong50-weight2-seed1"
    config = cell.config()
    assert (config.data.source, config.data.split, config.seed) == ("cifar10", 2, 1)
    assert (config.training.epochs, config.optimization.weight, config.data.held_out) == (50, 2.0, 0.02)


def test_what_the_recipe_says_anyway_does_not_make_another_cell():
    plain = make_cell("pmal", "cifar10", "arpl", 0, 0, recipe="strong")
    said = [
        "mining.per_class=10",
        "optimization.margin=0.50",
        "data.augmentation=strong",
        "encoder.options.dropout=0",
    ]
    assert make_cell("pmal", "cifar10", "arpl", 0, 0, recipe="strong", settings=said) == plain
    assert plain.encoder == "oscri"
    assert plain.epochs == 100


def test_what_the_method_does_anyway_does_not_make_another_cell():
    settings = ["method_options.gamma=0.5", "method_options.weight=1"]
    [kept] = make_cell("rpl", "sample", "arpl", 0, 0, recipe="sample", settings=settings).settings
    assert kept == "method_options.weight=1"


def test_settings_of_the_second_training_do_not_make_another_softmax():
    words = {"recipe": "strong", "settings": ["optimization.weight=2", "encoder.projection=linear"]}
    assert make_cell("softmax", "cifar10", "arpl", 0, 0, **words).settings == ("encoder.projection=linear",)
    assert len(make_cell("pmal", "cifar10", "arpl", 0, 0, **words).settings) == 2


def test_fields_of_the_same_name_are_told_apart():
    one, other = (
        make_cell("pmal", "cifar10", "arpl", 0, 0, recipe="strong", settings=[f"{section}.precision=fast"])
        if section == "mining"
        else make_cell(
            "pmal", "cifar10", "arpl", 0, 0, recipe="strong", settings=["training.precision=float32"]
        )
        for section in ("mining", "training")
    )
    assert "mining.precisionfast" in one.name
    assert "training.precisionfloat32" in other.name


def test_letters_that_no_file_name_takes_do_not_make_two_cells_one():
    def name(encoder):
        return Cell("pmal", "sample", "arpl", 0, 0, encoder, "sample", 1).name

    assert name("timm/small") != name("timm_small") == "pmal/sample-arpl0-timm_small-sample1-seed0"
    assert name("timm/small").startswith("pmal/sample-arpl0-timm_small-sample1-seed0-")


def test_a_long_name_is_cut_and_still_its_own():
    names = [
        Cell("pmal", "sample", "arpl", 0, seed, "small", "sample", 1, ("data.known=" + "x" * 300,)).name
        for seed in range(2)
    ]
    assert len(set(names)) == 2
    assert all(len(name) < 150 for name in names)


words = st.text("abc-._/ é", min_size=1, max_size=4)
cells = st.builds(
    Cell,
    method=st.sampled_from(["pmal", "softmax"]),
    source=words,
    family=st.sampled_from(["arpl", "neal"]),
    split=st.integers(0, 3),
    seed=st.integers(0, 3),
    encoder=words,
    recipe=words,
    epochs=st.integers(1, 99),
    settings=st.tuples(st.builds("data.known={}".format, words)),
)


@given(cells, cells)
def test_other_words_have_another_name(one, other):
    assert "/" not in one.name.partition("/")[2]
    assert one.name.isascii()
    same_text = [
        f"{c.source}-{c.family}{c.split}-{c.encoder}-{c.recipe}{c.epochs}-{c.settings}" for c in (one, other)
    ]
    if len(set(same_text)) == 2 and not any("-" in c.source + c.encoder + c.recipe for c in (one, other)):
        assert one.name != other.name


def test_every_record_is_where_its_cell_is_looked_for():
    files = [file for name in (*METHODS, ENSEMBLE) for file in RESULTS.glob(f"{name}/*.json")]
    assert files
    for file in files:
        record = json.loads(file.read_text())
        cell = cell_of(record)
        assert f"{cell.name}.json" == str(file.relative_to(RESULTS))
        grid = record.get("grid")
        varied = {field for sweep in GRIDS[grid] for field in sweep.fields} if grid else set()
        base = tuple(setting for setting in cell.settings if setting.partition("=")[0] not in varied)
        if cell.measure == FIT:  # an ensemble's is that of the PMAL which it costs as much as
            assert record["command"] == cell.command(grid, base), file
        assert cell.config().method == cell.method, file


def test_a_cell_survives_the_ledger():
    cell = make_cell("pmal", "cifar10", "neal", 1, 2, recipe="paper", settings=["mining.epsilon=0.5"])
    assert cell_of(json.loads(json.dumps({"cell": cell.about()}))) == cell


def test_own_data_and_recipes_go_by_name_and_digest(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[training]\nepochs = 3\n")
    (tmp_path / "pets").mkdir()
    cell = make_cell("pmal", str(tmp_path / "pets"), "all", 0, 0, recipe=str(recipe))
    assert cell.source.startswith("pets@")
    assert cell.recipe.startswith("mine@")
    assert cell.epochs == 3
    assert cell.config().data.source == str(tmp_path / "pets")
    assert f"--data {tmp_path / 'pets'} " in cell.command()
    assert f"--recipe {recipe} " in cell.command()
    recipe.write_text("[training]\nepochs = 4\n")
    assert make_cell("pmal", str(tmp_path / "pets"), "all", 0, 0, recipe=str(recipe), epochs=3) != cell


def test_a_folder_is_the_same_however_it_is_spelled(tmp_path, monkeypatch):
    (tmp_path / "pets").mkdir()
    (tmp_path / "other" / "pets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    near, far, other = (
        make_cell("pmal", source, "all", 0, 0, recipe="strong")
        for source in ("pets", str(tmp_path / "pets"), "other/pets")
    )
    assert near == far != other
    assert near.config().data.source == str(tmp_path / "pets")


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("training.epochs=3", "--epochs"),
        ("training.epochs = 3", "--epochs"),
        ("method=rpl", "--methods"),
        ("seed=1", "--seeds"),
        ("data.source=mnist", "--data"),
        ("data.family=neal", "--family"),
        ("data.split=1", "--splits"),
        ("encoder.name=small", "--encoder"),
    ],
)
def test_what_names_a_cell_is_not_set(setting, option):
    with pytest.raises(UsageError, match=f"use {option}$"):
        make_cell("pmal", "cifar10", "arpl", 0, 0, recipe="strong", settings=[setting])


def test_spelling_of_settings():
    assert plain_settings("strong", ['data.known=["a", "b"]', "rejection.per_class=true"]) == (
        'data.known=["a", "b"]',
        "rejection.per_class=true",
    )
    one, other = "training.learning_rate=0.05", "mining.per_class=5"
    assert plain_settings("strong", [one, other]) == plain_settings("strong", [other, one]) == (other, one)


@pytest.mark.parametrize(
    "setting",
    [
        'data.known=["a \\"quoted\\" one", "back\\\\slash"]',
        'encoder.options.stem="1"',
        'encoder.options.stem="true"',
        "training.learning_rate=1e-05",
        "optimization.weight=1.23456789",
    ],
)
def test_a_plain_setting_means_what_the_given_one_does(setting):
    [plain] = plain_settings("strong", [setting])
    assert parse_assignment(plain) == parse_assignment(setting)
    assert plain_settings("strong", [plain]) == (plain,)


def test_options_of_another_encoder_than_the_recipes_are_kept():
    options = ["encoder.options.depth=16"]
    cell = make_cell("pmal", "cifar10", "arpl", 0, 0, recipe="paper", encoder="wide_resnet", settings=options)
    assert cell.config().encoder.options == {"depth": 16}
