"""The stages together, on a few digits and one epoch: what a run leaves, however often it was interrupted."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from pmal import pipeline
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge
from pmal.data.splits.task import open_task
from pmal.ensemble import classifiers
from pmal.errors import DataError, UsageError
from pmal.rejection.bundle.saving import load_model
from pmal.run import run_folder as runs
from pmal.run.run_folder import read_config
from pmal.run.stages import STAGE_NAMES
from tests.support.tiny_settings import TINY

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def tiny(**changes):
    return build(RunConfig, merge(TINY, changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, pipeline.fit(tiny(), out)


def digest(folder):
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("log.jsonl", "manifest.json", ".lock")
    }


def test_a_run_leaves_a_model_that_answers_as_it_was_measured(run):
    out, metrics = run
    model = load_model(out / "model", CPU)
    assert set(metrics["scores"]) == {
        *model.score_names,
        *("typicality", "decision", "mahalanobis", "vim", "react"),
    }
    assert set(model.score_names) >= {"distance", "neighbors", "combined"}
    own = set(metrics["scores"]) - set(metrics["softmax"]["scores"])
    assert own == {"distance", "combined", "decision"}, "the first classifier has no held-out scores"
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert metrics == pipeline.evaluate(out)
    decision = metrics["decision"]
    assert (decision["score"], decision["accept"]) == ("combined", 0.95)
    assert 0 <= decision["unknown_rejected"] <= 1
    assert [len(row) for row in model.gallery] == [3] * 6
    assert len(model.calibration.predictions) == 60


def test_stage_by_stage_is_the_same_to_the_bit(run, tmp_path):
    whole, metrics = run
    for stage in STAGE_NAMES[:-1]:
        assert pipeline.fit(tiny(), tmp_path / "run", only=stage) == {}
        assert not (tmp_path / "run" / "metrics.json").exists()
    assert pipeline.fit(tiny(), tmp_path / "run", only="evaluation") == metrics
    assert pipeline.fit(tiny(), tmp_path / "run") == metrics
    assert digest(tmp_path / "run") == digest(whole)


@pytest.mark.parametrize(
    "died_in",
    [
        "embed_training_set",
        "measure_robustness",
        "choose_prototypes",
        "optimize_embedding",
        "save_model",
        "measure_model",
    ],
)
def test_a_run_that_died_goes_on_to_the_same_bits(run, tmp_path, monkeypatch, died_in):
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, died_in, die)
        with pytest.raises(Killed):
            pipeline.fit(tiny(), tmp_path / "run")
    pipeline.fit(tiny(), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(run[0])


def test_from_a_stage_on_with_other_settings(run, tmp_path):
    out = tmp_path / "run"
    pipeline.fit(tiny(), out)
    before = digest(out)
    changed = tiny(mining={"per_class": 2}, rejection={"score": "neighbors", "accept": 0.8})
    metrics = pipeline.fit(changed, out, start="mining")
    after = digest(out)
    kept = {name for name in before if after.get(name) == before[name]}
    # r is found again, the same: it does not depend on how many prototypes there are
    again = {"quality.json", "quality.safetensors"}
    assert {name.split("/")[0] for name in kept} == {"classifiers", "embeddings", "quarantine.json"} | again
    assert read_config(out) == changed
    assert metrics["decision"]["score"] == "neighbors"
    assert [len(row) for row in load_model(out / "model", CPU).gallery] == [2] * 6


@pytest.fixture
def finished(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    return tmp_path / "run"


class Killed(BaseException):
    """Stands for a process that is gone."""


def die(*args, **options):
    raise Killed


@pytest.mark.parametrize("died_in", ["discard", "write_text"])
def test_killed_while_it_drops_old_results_it_never_calls_them_new(finished, monkeypatch, died_in):
    changed = tiny(mining={"per_class": 2})
    with monkeypatch.context() as patch:
        patch.setattr(runs, died_in, die)
        with pytest.raises(Killed):
            pipeline.fit(changed, finished, start="mining")
    assert read_config(finished) == tiny()
    pipeline.fit(changed, finished, start="mining")
    assert [len(row) for row in load_model(finished / "model", CPU).gallery] == [2] * 6


def test_the_same_command_goes_on_with_what_is_done_anew(finished, monkeypatch):
    changed = tiny(mining={"per_class": 2})
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "save_model", die)
        with pytest.raises(Killed):
            pipeline.fit(changed, finished, start="mining")
    trained = (finished / "optimization" / "weights.safetensors").stat().st_mtime_ns
    pipeline.fit(changed, finished, start="mining")
    assert (finished / "optimization" / "weights.safetensors").stat().st_mtime_ns == trained
    pipeline.fit(changed, finished, start="mining")  # a new command does it once more
    assert (finished / "optimization" / "weights.safetensors").stat().st_mtime_ns > trained


def test_a_command_that_is_refused_costs_nothing(finished):
    before = digest(finished)
    with pytest.raises(UsageError, match="both must name the same stage"):
        pipeline.fit(tiny(), finished, start="mining", only="classifiers")
    task = open_task(tiny().data, None)
    fewer = dataclasses.replace(task, train=task.train.at(np.arange(len(task.train) - 1)))
    with pytest.raises(DataError, match="trained on other classes or images"):
        pipeline.fit(tiny(), finished, start="mining", task=fewer)
    renamed = dataclasses.replace(task.train, class_names=tuple(f"{name}." for name in task.class_names))
    with pytest.raises(DataError, match="trained on other classes or images"):
        pipeline.fit(tiny(), finished, task=dataclasses.replace(task, train=renamed, held_out=None))
    assert digest(finished) == before


def test_a_training_that_was_begun_with_other_images_is_refused_and_stays(tmp_path, monkeypatch):
    task, out = open_task(tiny().data, None), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(classifiers, "save_classifier", die)
        with pytest.raises(Killed):
            pipeline.fit(tiny(), out, open_session(Resources(checkpoint_seconds=0)), task=task)
    before = digest(out)
    assert {"quarantine.json", "classifiers/0/checkpoint.json"} <= set(before)
    fewer = dataclasses.replace(task, train=task.train.at(np.arange(len(task.train) - 1)))
    with pytest.raises(DataError, match=r"checkpoint\.json: trained on other classes or images"):
        pipeline.fit(tiny(), out, task=fewer)
    assert digest(out) == before


def test_settings_of_earlier_stages_stay(run):
    out, _ = run
    for change, start in (
        ({"training": {"epochs": 2}}, "mining"),
        ({"mining": {"per_class": 2}}, "optimization"),
        ({"optimization": {"margin": 0.1}}, "calibration"),
        ({"mining": {"per_class": 2}}, None),
    ):
        with pytest.raises(UsageError, match="was started with"):
            pipeline.fit(tiny(**change), out, start=start)
    assert read_config(out) == tiny()


def test_a_softmax_run_has_the_scores_of_its_logits(tmp_path):
    metrics = pipeline.fit(tiny(method="softmax"), tmp_path / "run")
    own, others = (
        {"probability", "logit", "energy", "typicality", "decision"},
        {"neighbors", "mahalanobis", "vim", "react"},
    )
    assert set(metrics["scores"]) == own | others
    assert "softmax" not in metrics
    assert metrics["decision"]["score"] == "logit"
    assert pipeline.evaluate(tmp_path / "run") == metrics


def test_without_held_out_images_there_is_no_threshold(tmp_path):
    metrics = pipeline.fit(tiny(method="softmax", data={"held_out": 0.0}), tmp_path / "run")
    assert "decision" not in metrics
    model = load_model(tmp_path / "run" / "model", CPU)
    with pytest.raises(UsageError, match="no threshold"):
        model.limits()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "softmax", "rejection": {"score": "distance"}}, "unknown score of method softmax"),
        ({"rejection": {"score": "nearest"}}, "unknown score of method pmal 'nearest'"),
        ({"rejection": {"score": "combined"}, "data": {"held_out": 0.0}}, "raise data.held_out"),
        ({"mining": {"quality": "robust"}}, "unknown quality"),
    ],
)
def test_wrong_settings_leave_nothing_behind(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        pipeline.fit(tiny(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unfinished_run_cannot_be_measured(tmp_path):
    pipeline.fit(tiny(), tmp_path / "run", only="classifiers")
    with pytest.raises(DataError, match="not finished: run `pmal fit` again"):
        pipeline.evaluate(tmp_path / "run")
