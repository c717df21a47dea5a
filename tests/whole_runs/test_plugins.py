"""Names that other packages add: found when they are met, refused twice, never imported for a file."""

import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
import typer
from PIL import Image

from pmal import (
    Head,
    LinearHead,
    OpenSetClassifier,
    plugins,
    register_encoder,
    register_method,
    register_score,
    register_source,
)
from pmal.cli import app
from pmal.data.sources.readers import SOURCES, open_source
from pmal.encoders.registry import ENCODERS
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS, SCORE_NAMES, SCORES
from pmal.plugins import Registry, load_plugin
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.model import Rule
from pmal.rejection.registered_scores import registered_score
from pmal.rejection.scores import LOGIT_SCORES
from pmal.rejection.training_scores import POST_HOC
from pmal.rejection.typicality.of_layers import TYPICALITY
from pmal.rejection.typicality.penalty import DECISION
from tests.support.documented import ROOT, blocks_of
from tests.support.hanging import HANGING

EXAMPLE = ROOT / "examples" / "plugin"
REGISTRIES = (METHODS, ENCODERS, SCORES, SOURCES)


def ours_of(registry):
    registry.loaded()
    return {name: found for name, found in registry._things.items() if registry.origin(name) is None}


def forget():
    for registry in REGISTRIES:
        vars(registry).pop("_announced", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pmal_example"]:
        del sys.modules[name]


@pytest.fixture
def fresh(monkeypatch):
    """As in a program that has just begun; what a test registers is gone after it."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_things", ours_of(registry))
    monkeypatch.setattr(plugins, "_named", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example as an installed package, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, folder / "source")  # setuptools builds beside the files
    words = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--target", folder / "site", source)
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, timeout=HANGING)
    if done.returncode:  # without pip or setuptools, what they would have written
        shutil.copytree(source / "pmal_example", folder / "site" / "pmal_example")
        write_dist_info(folder / "site", tomllib.loads((source / "pyproject.toml").read_text())["project"])
    return folder / "site"


def write_dist_info(site, project):
    info = site / "pmal_example-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pmal-example\nVersion: 0.1\n")
    points = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def installed(fresh, site):
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()


FIT = ("fit", "stripes", "--method", "cosine", "--encoder", "patches", "--num-known", 4, "--epochs", 1)
QUICK = ("--set", "rejection.score=gap", "--set", "data.limit=60", "--no-report")


def test_the_example_goes_through_every_command(installed, tmp_path, call, monkeypatch):
    run, picture = tmp_path / "run", tmp_path / "picture.png"
    code, shown, error = call(*FIT, *QUICK, "--out", run)
    assert code == 0, error
    assert {"gap", "angle"} <= set(json.loads((run / "metrics.json").read_text())["scores"])
    assert json.loads((run / "model" / "model.json").read_text())["plugins"] == [
        {"kind": "encoder", "name": "patches", "module": "pmal_example.encoder"},
        {"kind": "method", "name": "cosine", "module": "pmal_example.head"},
        {"kind": "score", "name": "gap", "module": "pmal_example.score"},
    ]

    Image.fromarray(open_source("stripes", None).test.read(0)[..., 0]).save(picture)
    code, shown, error = call("predict", run, picture, "--json")
    assert code == 0, error
    answer = json.loads(shown)["answers"][0]
    assert call("export", run)[0] == 0
    exported = json.loads(call("predict", run / "model.onnx", picture, "--json")[1])["answers"][0]
    assert exported["class"] == answer["class"]
    assert exported["score"] == pytest.approx(answer["score"], abs=1e-4)

    model = load_model(run / "model", torch.device("cpu"))
    save_model(tmp_path / "by-logit", dataclasses.replace(model, rule=Rule("logit")))
    kept = safetensors.numpy.load_file(tmp_path / "by-logit" / "calibration.safetensors")
    assert "scores.angle" in kept
    assert "scores.gap" not in kept  # so that it can be loaded without the plugin of this score

    places = ("--out", tmp_path / "ledger", "--work", tmp_path / "work")
    asked = ("--methods", "cosine", "--data", "stripes", "--encoder", "patches", "--recipe", "sample")
    small = ("--epochs", 1, "--set", "data.limit=60", "--set", "data.num_known=4")
    code, shown, error = call("benchmark", *asked, *small, *places)
    assert code == 0, error
    assert "cosine, 1" in call("benchmark", "table", "--out", tmp_path / "ledger")[1]

    # The module can be imported, and a file names it: that alone must not import it.
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_things", ours_of(registry))
    forget()
    sys.path[0] = str(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    code, shown, error = call("predict", run, picture)
    needed = "encoder 'patches' of the plugin pmal_example.encoder and method 'cosine' of the plugin"
    assert (code, shown, error.count("\n")) == (3, "", 1)
    assert f"model.json: needs {needed} pmal_example.head and" in error
    assert "--plugin pmal_example.encoder --plugin pmal_example.head --plugin pmal_example.score" in error
    code, _, error = call("evaluate", run)
    assert (code, error.count("\n")) == (3, 1)
    assert "its method 'cosine' is unknown here: install the plugin" in error
    with pytest.raises(DataError, match="in Python: import it first"):
        OpenSetClassifier.load(run)
    assert "pmal_example" not in sys.modules

    sys.path.pop(0)
    monkeypatch.chdir(EXAMPLE)
    code, shown, error = call("predict", run, picture, "--json", "--plugin", "pmal_example")
    assert code == 0, error
    assert json.loads(shown)["answers"][0] == answer


def test_the_page_shows_the_example():
    text = (ROOT / "docs" / "how-to" / "plugin.md").read_text()
    files = [file for file in (EXAMPLE / "pmal_example").glob("*.py") if file.stem != "__init__"]
    assert sorted(block.text for block in blocks_of(text) if block.kind == "python") == sorted(
        file.read_text() for file in files
    )
    [shown] = [block.text for block in blocks_of(text) if block.kind == "toml"]
    assert shown.rstrip() in (EXAMPLE / "pyproject.toml").read_text()


def test_lists_and_hints_name_what_is_installed(installed, call):
    assert "did you mean 'stripes'?" in call("fit", "stripse")[2]
    assert "did you mean 'cosine'?" in call("fit", "sample", "--method", "cosinus")[2]
    assert "pmal_example" not in sys.modules  # names are enough for a hint
    assert "patches" in call("fit", "sample", "--encoder", "patchez")[2]
    shown = call("data", "list")[1]
    assert re.search(r"stripes +Stripes in six directions, 16 px gray. +plugin pmal_example.source", shown)


def test_every_command_takes_plugins():
    def commands(command, name=""):
        for inner_name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, f"{name} {inner_name}")
        if not getattr(command, "commands", {}) or command.invoke_without_command:
            yield name, {option for parameter in command.params for option in parameter.opts}

    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 10
    assert not [name for name, options in found.items() if "--plugin" not in options]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "plugin mine: no such module: install its package, or run the command in the folder"),
        ("import nothing_of_this_name", "plugin mine needs the module nothing_of_this_name: install it"),
        ("1 / 0", r"plugin mine cannot be imported \(division by zero\)"),
        ("x = (", "plugin mine cannot be imported"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_in_a_line(fresh, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content:
        Path("mine.py").write_text(content)
    with pytest.raises(UsageError, match=message):
        load_plugin("mine")
    assert not plugins.named_plugins()


def announce(folder, group, name, module, package="other"):
    """An installed package that announces a name."""
    info = folder / f"{package}-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def test_a_broken_package_hurts_only_whoever_asks_for_its_name(fresh, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    announce(tmp_path, "pmal.encoders", "glass", "broken_plugin")
    assert ENCODERS["small"]
    assert "wood" not in ENCODERS
    assert "glass" in list(ENCODERS)
    with pytest.raises(UsageError, match=r"encoder 'glass' of the installed package other cannot be loaded"):
        _ = ENCODERS["glass"]


def test_an_entry_point_without_its_name_and_one_of_two_packages_are_refused(fresh, tmp_path):
    (tmp_path / "silent_plugin.py").write_text("")
    announce(tmp_path, "pmal.scores", "mute", "silent_plugin")
    with pytest.raises(UsageError, match="is not registered by silent_plugin: fix its entry point"):
        _ = SCORES["mute"]
    announce(tmp_path, "pmal.scores", "mute", "another_plugin", package="third")
    vars(SCORES).pop("_announced")
    with pytest.raises(UsageError, match=r"is in the packages \w+ and \w+: uninstall one"):
        _ = SCORES["mute"]


def test_a_name_is_registered_once(fresh):
    class OfMine(LinearHead):
        own_scores = ("logit",)

    def anything(*about):
        raise AssertionError

    for register, name in (
        (register_method, "pmal"),
        (register_method, "cpn"),
        (register_encoder, "small"),
        (register_source, "mnist"),
        (register_source, "sample"),
        (register_score, "openmax"),
        *((register_score, name) for name in SCORE_NAMES),
    ):
        with pytest.raises(UsageError, match="already"):
            register(name)(LinearHead if register is register_method else anything)
    with pytest.raises(UsageError, match="score 'logit' exists already"):
        register_method("mine")(OfMine)
    register_score("mine")(anything)
    with pytest.raises(UsageError, match=f"score 'mine' is registered already by {__name__}"):
        register_score("mine")(anything)
    for name in ("", "a/b", "a,b", ".a", "a b"):
        with pytest.raises(UsageError, match="choose a name of letters"):
            register_encoder(name)(anything)
    with pytest.raises(UsageError, match="pretrained network"):
        register_encoder("timm/mine")(anything)


def test_the_reserved_names_are_those_of_the_scores():
    assert {*LOGIT_SCORES, *POST_HOC, *METHODS["pmal"].scores, TYPICALITY, DECISION} == set(SCORE_NAMES)


def test_a_method_follows_its_head_and_its_options(fresh):
    @register_method("plain")
    class Plain(Head):
        pass

    @register_method("scored", after=True, again=True, paper="Someone, 2026")
    class Scored(LinearHead):
        own_scores = ("one", "two")

    plain, scored = METHODS["plain"], METHODS["scored"]
    assert (plain.score, plain.head, plain.final, plain.second) == ("logit", "plain", "", False)
    assert (scored.score, scored.head, scored.final, scored.second) == ("one", "linear", "scored", True)
    assert (scored.scores, scored.paper) == (("one", "two"), "Someone, 2026")


def test_what_breaks_a_registered_score_is_unknown(fresh):
    @register_score("first")
    def first_number(z, logits):
        assert z.dtype == logits.dtype == torch.float64
        return z[:, 0]

    z = torch.tensor([[1.0, 0.0], [float("nan"), 0.0], [2.0, float("inf")]])
    score = registered_score("first", z, torch.zeros(3, 2))
    assert score.tolist() == [1.0, np.inf, np.inf]
    register_score("wrong")(lambda z, logits: logits)
    with pytest.raises(UsageError, match=r"score 'wrong' returned \(3, 2\): it must return one number"):
        registered_score("wrong", z, torch.zeros(3, 2))


def test_a_plugin_cannot_take_a_name_of_ours_that_is_not_loaded_yet():
    late = Registry("thing", lambda: "ours" in late._things or late.register("ours", 1, "pmal.late"))
    with pytest.raises(UsageError, match="thing 'ours' is registered already"):
        late.register("ours", 2, "stranger")
    assert late["ours"] == 1
