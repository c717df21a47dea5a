"""Finished runs and bundles against other images, as a library call and as a command."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from pmal import pipeline
from pmal._runtime.session import open_session
from pmal.benchmark.far.comparison import FarOptions, measure_runs
from pmal.benchmark.far.far_images import MADE
from pmal.config import Resources, RunConfig, build, merge
from tests.benchmark.ledgers import tiny
from tests.support.command_line import assert_one_line_error

pytestmark = pytest.mark.slow


class Said:
    """Keeps the lines that are meant for people."""

    def __init__(self):
        from pmal._runtime.progress import Silent

        self.lines, self.stage = [], Silent().stage

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root with photos, one class of which has the name of a known digit."""
    folder = tmp_path_factory.mktemp("root")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "2"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("pmal", "softmax"):
        pipeline.fit(tiny(method).config(), folder / method, open_session(Resources(device="cpu")))
    return folder


def session_in(root, display=None):
    return open_session(Resources(device="cpu", data_root=str(root)), display)


SETS = ("mnist", "svhn", "photos")


@pytest.fixture(scope="module")
def measured(runs, root):
    display = Said()
    options = FarOptions(sets=SETS, most=10)
    found = measure_runs([runs / "pmal", runs / "softmax"], session_in(root, display), options)
    return found, display.lines


def test_every_run_has_near_far_and_made_images(measured):
    found, _ = measured
    assert json.loads(json.dumps(found)) == found
    for run, method in zip(found["runs"], ("pmal", "softmax"), strict=True):
        assert run["about"]["method"] == method
        assert run["about"]["passes"] > 0
        kinds = [(row["kind"], row["images"]) for row in run["far"]]
        assert kinds == [("near", "unknown classes"), ("set", "photos"), *(("made", name) for name in MADE)]
        assert [row["count"] for row in run["far"]] == [400, *[10] * 6]
        assert run["left_out"] == ["mnist", "svhn"]
        assert run["known"]["count"] == 600
        assert set(run["known"]["rejected"]) == {"near", "both"}
        for row in run["far"]:
            assert all(0 <= share <= 1 for share in row["rejected"].values())
            assert row["scores"]["vim"].keys() == {"auroc", "fpr95", "rejected"}
    assert found["about"] == {"most": 10, "sets": list(SETS)}
    assert found["manifest"]["hardware"]["device"] == "cpu"


def test_softmax_has_every_score_of_pmal_but_those_of_prototypes(measured):
    pmal, softmax = (set(run["far"][0]["scores"]) for run in measured[0]["runs"])
    assert pmal - softmax == {"distance", "combined"}
    assert {"neighbors", "typicality", "mahalanobis", "vim", "react", "both"} <= softmax


def test_near_figures_are_those_of_the_run(measured, runs):
    """All known and unknown test images count, whatever --most says."""
    for run, method in zip(measured[0]["runs"], ("pmal", "softmax"), strict=True):
        metrics = json.loads((runs / method / "metrics.json").read_text())
        for name, row in metrics["scores"].items():
            found = run["far"][0]["scores"]["both" if name == "decision" else name]
            assert found["auroc"] == pytest.approx(row["auroc"]["value"], abs=1e-9), name
        decision = metrics["decision"]
        assert run["known"]["rejected"]["both"] == pytest.approx(1 - decision["known_accepted"])
        assert run["far"][0]["rejected"]["both"] == decision["unknown_rejected"]


def test_what_is_left_out_is_said(measured):
    _, lines = measured
    assert "mnist is left out: the model was trained on images of this kind (sample)" in lines
    assert any(line.startswith("svhn is left out: data set 'svhn' is not under") for line in lines)
    assert "photos: without its 1 classes that have the name of a known one" in lines
    assert any(line.startswith("model 2 of 2: softmax sample arpl/0 small seed 0") for line in lines)


def test_a_bundle_needs_the_name_of_its_set_and_gives_the_same(runs, root, tmp_path, measured):
    shutil.copytree(runs / "pmal" / "model", tmp_path / "bundle")
    options = FarOptions("sample", sets=SETS, most=10)
    [found] = measure_runs([tmp_path / "bundle"], session_in(root), options)["runs"]
    [inside] = measure_runs([runs / "pmal" / "model"], session_in(root), FarOptions(sets=SETS, most=10))[
        "runs"
    ]
    assert inside == measured[0]["runs"][0]
    assert found["known"] == inside["known"]
    for one, other in zip(found["far"], inside["far"], strict=True):
        assert one["rejected"] == other["rejected"]
        assert one["scores"]["combined"] == other["scores"]["combined"]


def test_a_run_without_held_out_images_has_rankings_alone(tmp_path, root):
    from pmal.config import to_settings

    settings = merge(to_settings(tiny("softmax").config()), {"data": {"held_out": 0.0}})
    pipeline.fit(build(RunConfig, settings), tmp_path / "run", session_in(root))
    [found] = measure_runs([tmp_path / "run"], session_in(root), FarOptions(sets=(), most=5))["runs"]
    assert found["known"]["rejected"] == {}
    assert found["far"][0]["scores"]["logit"].keys() == {"auroc", "fpr95"}


def test_methods_without_a_linear_head_have_their_own_scores(tmp_path, root):
    pipeline.fit(tiny("arpl").config(), tmp_path / "run", session_in(root))
    [found] = measure_runs([tmp_path / "run"], session_in(root), FarOptions(sets=(), most=5))["runs"]
    assert set(found["far"][0]["scores"]) == {"probability", "logit", "energy", "typicality", "both"}


def test_the_command_prints_tables_and_writes_the_file(runs, root, tmp_path, call):
    out = tmp_path / "new" / "far.json"
    words = ["benchmark", "far", runs / "softmax", "--sets", "photos", "--most", "5", "--data-root", root]
    code, shown, error = call(*words, "--out", out)
    assert code == 0, error
    assert "asking about noise: 5 images" in error
    assert "softmax sample arpl/0 small seed 0" in shown
    lines = shown.splitlines()
    heads = ["images", "count", "AUROC near", "both", "FPR95 near", "both", "rejected near", "both"]
    assert re.split(" {2,}", lines[1]) == heads
    assert [line.split("  ")[0] for line in lines[2:5]] == ["known", "unknown classes", "photos"]
    assert any(line.startswith("AUROC of") and "vim" in line for line in lines)
    code, shown, _ = call(*words, "--json")
    assert json.loads(shown)["runs"] == json.loads(out.read_text())["runs"]


def test_mistakes_are_told_in_one_line(runs, root, tmp_path, call):
    shutil.copytree(runs / "softmax" / "model", tmp_path / "bundle")
    for words, code, part in (
        ([tmp_path / "none"], 3, "no such folder"),
        ([tmp_path / "bundle"], 2, "(--data)"),
        ([tmp_path / "bundle", "--data", "smple"], 2, "did you mean 'sample'"),
        ([runs / "softmax", "--sets", "svhn,,mnist"], 2, "between two commas"),
        ([runs / "softmax", "--out", tmp_path], 2, "is a folder"),
    ):
        assert_one_line_error(call("benchmark", "far", *words), code, part)
    code, _, error = call("benchmark", "far", runs / "softmax", "--memory-limit", "0")
    assert code == 2
    assert "asking" not in error
    assert error.splitlines()[-1].startswith("error: 600 images do not fit into memory: lower --most")
