import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.config import (
    DataConfig,
    RunConfig,
    TrainingConfig,
    build,
    describe_recipes,
    field_help,
    list_recipes,
    merge,
    own_recipe,
    parse_assignment,
    read_recipe,
    to_settings,
    to_toml,
)
from pmal.errors import UsageError
from pmal.methods import METHODS


def test_every_recipe_parses():
    assert {"imagenet", "imagenet-lt", "paper", "sample", "standard", "strong"} < set(list_recipes())
    for name in list_recipes():
        assert build(RunConfig, read_recipe(name)).training.epochs > 0


def test_the_help_of_an_option_names_the_recipes_for_all_methods():
    assert describe_recipes().startswith(
        "imagenet, imagenet-lt, paper, precomputed, sample, standard, strong, own"
    )


def test_every_method_has_the_recipe_that_it_was_published_with():
    from pmal.pipeline import check_config

    for method in METHODS:
        for source in ("cifar10", "tinyimagenet"):
            recipe = own_recipe(method, source)
            config = build(RunConfig, merge(read_recipe(recipe), {"method": method}))
            check_config(config)
            # Whatever it trains with, it is written down, and no other method's default gets in.
            assert config.training != TrainingConfig(), (method, recipe)
    assert own_recipe("arpl+cs", "tinyimagenet") == "arpl-tinyimagenet"
    with pytest.raises(UsageError, match="method mine has none: choose imagenet"):
        own_recipe("mine", "cifar10")


def test_smoothed_labels_of_the_softmax_on_tinyimagenet_are_the_published_ones():
    """There the own class keeps 1 - 0.9, and the other 19 share 0.9."""
    smoothing = build(RunConfig, read_recipe("softmax-tinyimagenet")).training.label_smoothing
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([3, 0, 19, 7])
    targets = torch.full((4, 20), 0.9 / 19).double().scatter(1, labels[:, None], 0.1)
    published = -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()
    ours = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(ours, published, rtol=1e-6, atol=1e-6)


def test_paper_recipe_is_the_papers_text():
    training = build(RunConfig, read_recipe("paper")).training
    assert (training.optimizer, training.learning_rate, training.epochs) == ("adam", 0.01, 600)
    assert (training.schedule, training.step_epochs, training.weight_decay) == ("steps", 120, 5e-4)


@given(
    seed=st.integers(0, 2**40),
    rate=st.floats(1e-9, 1e3),
    known=st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=4),
)
def test_settings_survive_toml(seed, rate, known):
    config = RunConfig(
        seed=seed,
        data=DataConfig(known=tuple(known)),
        training=TrainingConfig(learning_rate=rate, ema=0.999),
    )
    assert build(RunConfig, tomllib.loads(to_toml(to_settings(config)))) == config


def test_unknown_setting_names_the_nearest():
    with pytest.raises(UsageError, match=r"'training.epoch': did you mean 'training.epochs'\?"):
        build(RunConfig, {"training": {"epoch": 3}})


@pytest.mark.parametrize("value", ["12", 1.5, True, [1]])
def test_wrong_type_is_named(value):
    with pytest.raises(UsageError, match=r"training\.epochs = .*expected int"):
        build(RunConfig, {"training": {"epochs": value}})


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'strong'"):
        read_recipe("stron")


def test_recipe_file_problems_name_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"gone.toml: No such file"):
        read_recipe(str(tmp_path / "gone.toml"))
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(UsageError, match=r"bad.toml: not valid TOML"):
        read_recipe(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("text", ["epochs", "=3", ""])
def test_assignment_without_a_key_or_value(text):
    with pytest.raises(UsageError, match=r"section\.field=value"):
        parse_assignment(text)


def test_merge_leaves_its_layers_alone():
    base = {"a": {"b": 1}}
    assert merge(base, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert base == {"a": {"b": 1}}


@pytest.mark.parametrize("cls", [DataConfig, TrainingConfig])
def test_every_field_has_a_help_text(cls):
    assert set(field_help(cls)) == set(cls.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 1),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("momentum", 1.0),
        ("weight_decay", -1.0),
        ("label_smoothing", 5.0),
        ("ema", 2.0),
        ("warmup_epochs", -1.0),
        ("step_epochs", 0),
    ],
)
def test_numbers_out_of_range_are_named(name, value):
    with pytest.raises(UsageError, match=rf"^training\.{name} = .*: must be "):
        build(RunConfig, {"training": {name: value}})
    with pytest.raises(UsageError, match=rf"^{name} = .*: must be "):
        TrainingConfig(**{name: value})


def test_a_section_given_as_a_value_is_named():
    with pytest.raises(UsageError, match=r"encoder = 'resnet18': expected a section \[encoder\]"):
        build(RunConfig, {"encoder": "resnet18"})
    with pytest.raises(UsageError, match="expected a list"):
        build(RunConfig, {"data": {"known": "red"}})


def test_options_of_a_recipe_go_with_its_encoder():
    paper = read_recipe("paper")
    assert build(RunConfig, paper).encoder.options == {"dropout": 0.2}
    assert build(RunConfig, merge(paper, {"encoder": {"name": "oscri"}})).encoder.options == {"dropout": 0.2}
    other = merge(paper, {"encoder": {"name": "wide_resnet", "options": {"depth": 16}}})
    assert build(RunConfig, other).encoder.options == {"depth": 16}
