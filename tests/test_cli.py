"""The command line as a user meets it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

TINY = ["--set", "training.batch_size=250", "--set", "training.precision=float32"]


def pmal(*words, cwd=None, timeout=120):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pmal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=environment)


def assert_one_line_error(result, code, *parts):
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr


def test_help_needs_neither_torch_nor_sklearn():
    script = (
        "import sys; from pmal.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {'torch', 'sklearn', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_help_answers_in_half_a_second():
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert pmal("--help").returncode == 0
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5


def test_fit_and_evaluate_agree_and_name_the_family(tmp_path):
    fitted = pmal("fit", "--out", tmp_path / "run", "--epochs", 1, *TINY)
    assert fitted.returncode == 0, fitted.stderr
    assert "sample · split arpl/0 (6 known / 4 unknown classes)" in fitted.stdout
    assert all(
        word in fitted.stdout for word in ("ACC", "AUROC", "FPR95", "OSCR", "probability", "logit", "energy")
    )
    assert fitted.stdout.count("family=arpl") == 3
    assert f"run folder: {tmp_path / 'run'}" in fitted.stdout
    evaluated = pmal("evaluate", tmp_path / "run", "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout) == json.loads((tmp_path / "run" / "metrics.json").read_text())
    left = {f.name for f in (tmp_path / "run").iterdir() if not f.name.startswith(".")}
    assert left == {
        "config.toml",
        "manifest.json",
        "log.jsonl",
        "classifiers",
        "metrics.json",
        "quarantine.json",
    }
    again = pmal("fit", "--out", tmp_path / "run", "--epochs", 1, *TINY)
    assert again.stdout == fitted.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bits(tmp_path, number):
    words = ["--epochs", 3, "--set", "training.batch_size=60", "--checkpoint-seconds", 0]
    whole = pmal("fit", "--out", tmp_path / "whole", *words)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "pmal", "fit", "--out", tmp_path / "killed", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        wait_for_epoch(tmp_path / "killed" / "log.jsonl", process)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "run the same command again" in error
        assert "Traceback" not in error
    assert not (tmp_path / "killed" / "metrics.json").exists()
    resumed = pmal("fit", "--out", tmp_path / "killed", *words)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed_at_step" in (tmp_path / "killed" / "log.jsonl").read_text()
    for name in ("metrics.json", "classifiers/0/weights.safetensors", "quarantine.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def wait_for_epoch(log, process, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if log.exists() and '"epoch": 1' in log.read_text():
            return
        time.sleep(0.005)
    raise AssertionError("no epoch was logged in time")


def test_wrong_use_is_told_in_one_line(tmp_path):
    out = ["--out", tmp_path / "run"]
    assert_one_line_error(pmal("fit", "mnits", *out), 2, "did you mean 'mnist'?")
    assert_one_line_error(pmal("fit", "--family", "arlp", *out), 2, "did you mean 'arpl'?")
    assert_one_line_error(pmal("fit", "--split", 7, *out), 2, "choose 0 to 4")
    assert_one_line_error(pmal("fit", "--encoder", "oscrl", *out), 2, "did you mean 'oscri'?")
    assert_one_line_error(pmal("fit", "--recipe", "stong", *out), 2, "did you mean 'strong'?")
    assert_one_line_error(pmal("fit", "--method", "sofmax", *out), 2, "did you mean 'softmax'?")
    assert_one_line_error(pmal("fit", "--set", "training.epoch=3", *out), 2, "training.epochs")
    assert_one_line_error(pmal("fit", "--set", "data.augmentation=stron", *out), 2, "did you mean 'strong'?")
    assert_one_line_error(pmal("fit", "--device", "cuda:77", *out), 2, "--device cpu")
    assert not (tmp_path / "run").exists()


def test_bad_data_is_told_in_one_line(tmp_path):
    assert_one_line_error(pmal("fit", tmp_path / "gone", "--out", tmp_path / "run"), 3, "gone")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(pmal("fit", tmp_path / "empty", "--out", tmp_path / "run"), 3, "empty")
    assert_one_line_error(pmal("evaluate", tmp_path / "empty"), 3, "not a run folder")
    assert not (tmp_path / "run").exists()


def test_unwritable_output_is_told_before_training(tmp_path):
    (tmp_path / "file").touch()
    result = pmal("fit", "--out", tmp_path / "file" / "run")
    assert_one_line_error(result, 2, "cannot write to", "choose another folder")


def test_splits_as_json_and_their_defects():
    result = pmal("data", "splits", "cifar10", "--family", "arpl", "--json")
    table = json.loads(result.stdout)
    assert table[0] == {"known": [0, 6, 4, 9, 1, 7], "unknown": [2, 3, 5, 8]}
    assert len(table) == 5
    assert "splits 0 and 1 have the same known classes" in result.stderr
    assert_one_line_error(pmal("data", "splits", "cifar1"), 2, "did you mean 'cifar10'?")


def test_data_list_check_and_convert(tmp_path):
    listed = json.loads(pmal("data", "list", "--json").stdout)
    assert {"sample", "mnist", "cifar+50", "imagenet-lt"} <= {entry["name"] for entry in listed}
    assert "1,000 test images" in pmal("data", "convert", "sample", tmp_path / "a.parquet").stdout
    checked = json.loads(pmal("data", "check", tmp_path / "a.parquet", "--json").stdout)
    assert checked["parts"]["train"]["total"] == 5000
    assert checked["parts"]["train"]["per_class"]["7"] == 500
    assert checked["parts"]["test"]["sizes"] == {"28x28x1": 1000}
    assert checked["parts"]["train"]["unreadable"] == []
    assert_one_line_error(pmal("data", "convert", "sample", tmp_path / "a.parquet"), 2, "--force")
