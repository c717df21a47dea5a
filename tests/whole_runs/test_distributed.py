"""Two processes do what one does: the same prototypes, gradients and weights, one folder, one end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pmal import pipeline
from pmal._engine import loop as training
from pmal._runtime.processes.ranks import ALONE
from pmal._runtime.tensors import load_tensors
from pmal.commands.options import configure
from pmal.config import Resources
from pmal.errors import Interrupted
from pmal.run.run_folder import read_config
from tests.support import sharing
from tests.support.hanging import HANGING
from tests.support.processes import run_processes

pytestmark = pytest.mark.slow

FOLDER = Path(sharing.__file__).parent
TINY = ["data.limit=40", "data.image_size=12", "training.batch_size=24", "encoder.name=small"]
SOFTMAX = ["--method", "softmax", "--epochs", 2, "--checkpoint-seconds", 0, "--device", "cpu"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return sharing.everything(ALONE, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What each of the two processes has, by name."""
    out = tmp_path_factory.mktemp("together")
    ended = run_processes(FOLDER / "sharing.py", out)
    assert [one.code for one in ended] == [0, 0], ended
    return [
        {file.name.split(".")[0]: load_file(file) for file in out.glob(f"*.{rank}.safetensors")}
        for rank in range(2)
    ]


@pytest.mark.parametrize("name", ["mined", "mined file", "embedded", "opened", "kept"])
def test_prototypes_embeddings_and_images_are_the_same_to_the_bit(alone, together, name):
    for found in together:
        assert alone[name].keys() == found[name].keys()
        for key, expected in alone[name].items():
            assert torch.equal(found[name][key], expected), key


@pytest.mark.parametrize("name", sharing.OBJECTIVES)
def test_gradients_weights_and_bank_are_those_of_the_whole_batch(alone, together, name):
    for found in together:
        assert alone[name].keys() == found[name].keys()
        for key, expected in alone[name].items():
            torch.testing.assert_close(found[name][key], expected, rtol=1e-5, atol=1e-7, msg=key)


def test_trainings_end_alike_and_with_the_same_weights_everywhere(alone, together):
    own, (first, second) = alone["trained"], [found["trained"] for found in together]
    for key, expected in own.items():
        if key != "drawn":
            torch.testing.assert_close(first[key], expected, rtol=1e-3, atol=1e-4, msg=key)
            assert torch.equal(first[key], second[key]), key


def test_batch_norm_that_is_not_synchronized_ends_with_the_mean_of_the_statistics(alone, together):
    own, (first, second) = alone["trained apart"], [found["trained apart"] for found in together]
    names = [key for key in own if "running" in key]
    assert names
    for key in names:
        assert torch.equal(first[key], second[key]), key
        assert not torch.equal(first[key], own[key]), key


def test_processes_draw_other_random_numbers_and_the_first_those_of_one_alone(alone, together):
    first, second = (found["trained"]["drawn"] for found in together)
    assert torch.equal(first, alone["trained"]["drawn"])
    assert len(torch.cat([first, second]).unique()) == 2 * len(first)


def fit_words(out, *words):
    return [
        "fit",
        "--no-report",
        "--out",
        out,
        *(word for setting in TINY for word in ("--set", setting)),
        *words,
    ]


def two(action, out, *words, **options):
    """`pmal fit` in two processes of which one acts: their ends."""
    return run_processes(FOLDER / "misbehaving.py", *action, *fit_words(out, *SOFTMAX, *words), **options)


def resumed_steps(out):
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event["resumed_at_step"] for event in events if "resumed_at_step" in event]


def test_torchrun_fits_a_run_that_one_process_accepts(tmp_path):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "pmal"]
    words = fit_words(tmp_path / "run", "--epochs", 1, "--device", "cpu", "--json")
    ended = subprocess.run(
        [sys.executable, *launch, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert ended.returncode == 0, ended.stderr
    metrics = json.loads(ended.stdout)  # of one process alone
    assert metrics == pipeline.evaluate(tmp_path / "run")
    assert set(metrics["scores"]) >= {"distance", "neighbors", "combined"}
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["processes"] == 2
    assert not list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob("checkpoint*"))


def test_a_signal_to_one_stops_both_after_the_same_step_and_one_goes_on(tmp_path):
    ended = two([1, "SIGTERM", 3], tmp_path / "run", "--checkpoint-seconds", 1e6)
    assert [one.code for one in ended] == [143, 143], ended
    message = (
        "error: interrupted: classifier 0 is saved at step 4 of 16; run the same command again to resume\n"
    )
    assert sorted(one.err.endswith(message) for one in ended) == [False, True]
    _, about = load_tensors(tmp_path / "run" / "classifiers" / "0" / "checkpoint")
    assert about["step"] == 4
    assert 0 < pipeline.fit(read_config(tmp_path / "run"), tmp_path / "run")["accuracy"]["value"] <= 1
    assert resumed_steps(tmp_path / "run") == [4]


def test_two_go_on_where_one_was_interrupted_and_only_the_first_sees_the_folder(tmp_path, monkeypatch):
    out, run_step = tmp_path / "run", training._Loop.run_step

    def stop(loop, *batch):
        if loop.step == 7:
            signal.raise_signal(signal.SIGTERM)
        run_step(loop, *batch)

    monkeypatch.setattr(training._Loop, "run_step", stop)
    config, _ = configure(None, {"method": "softmax", "training": {"epochs": 2}}, TINY, Resources())
    with pytest.raises(Interrupted, match="saved at step 8 of 16"):
        pipeline.fit(config, out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = two([9, "nothing", 0], "run", folders=(tmp_path, elsewhere))
    assert not list(elsewhere.iterdir())
    assert [one.code for one in ended] == [0, 0], ended
    assert resumed_steps(out) == [8]
    assert "run folder:" in ended[0].out
    assert ended[1].out == ended[1].err == ""
    assert pipeline.evaluate(out) == json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("action", "codes", "message"),
    [
        ("nan", {1}, "classifier 0: loss is nan at step 5 (sample ids "),
        ("raise", {3, 1}, "error: sample 7: gone\n"),
        ("crash", {1}, "ZeroDivisionError: a bug"),
        ("SIGKILL", {-9, 1}, "error: another process of this run has ended"),
    ],
)
def test_one_that_fails_ends_both_and_leaves_the_last_checkpoint(tmp_path, action, codes, message):
    ended = two([1, action, 5], tmp_path / "run")
    assert {one.code for one in ended} == codes, ended
    assert sum(message in one.err for one in ended) >= 1
    assert sum(one.err.count("error:") for one in ended) <= 1  # not its consequence as well
    tensors, about = load_tensors(tmp_path / "run" / "classifiers" / "0" / "checkpoint")
    assert about["step"] == 5
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_cannot_be_shared_is_refused_once(tmp_path):
    words = ["-m", "pmal", *fit_words(tmp_path / "run", "--set", "training.batch_size=25")]
    ended = run_processes(*words)
    assert [one.code for one in ended] == [2, 2]
    message = "error: training.batch_size = 25 cannot be divided by 2 processes: choose 24 or 26\n"
    assert sorted(one.err for one in ended) == ["", message]
    assert not (tmp_path / "run").exists()
