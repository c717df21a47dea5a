"""The command line as a user meets it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pmal._runtime.signals import STOPPING
from pmal.data.decoding.decode import encode_png
from pmal.mining.miner import mine_prototypes
from pmal.mining.prototypes import PrototypeSet
from tests.support.command_line import MISBEHAVING, assert_one_line_error, pmal, python
from tests.support.hanging import HANGING

pytestmark = pytest.mark.slow

TINY = ["--method", "softmax", "--no-report", "--set", "training.batch_size=250"]
TINY += ["--set", "training.precision=float32"]


def test_help_loads_nothing_that_takes_long():
    script = (
        "import sys; from pmal.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "late = {'torch', 'sklearn', 'scipy', 'numba', 'numpy', 'pyarrow', 'PIL', 'safetensors', 'jinja2',"
        " 'openTSNE', 'fastapi', 'uvicorn', 'onnx', 'onnxruntime', 'multiprocessing', 'asyncio'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_fit_and_evaluate_agree_and_name_the_family(tmp_path, call):
    words = ["fit", "--out", tmp_path / "run", "--epochs", 1, *TINY]
    code, fitted, error = call(*words)
    assert code == 0, error
    assert "sample · split arpl/0 (6 known / 4 unknown classes)" in fitted
    assert all(word in fitted for word in ("ACC", "AUROC", "FPR95", "OSCR", "probability", "logit", "energy"))
    assert fitted.count("family=arpl") == 9
    assert f"run folder: {tmp_path / 'run'}" in fitted
    evaluated = call("evaluate", tmp_path / "run", "--json")[1]
    assert json.loads(evaluated) == json.loads((tmp_path / "run" / "metrics.json").read_text())
    left = {f.name for f in (tmp_path / "run").iterdir() if not f.name.startswith(".")}
    assert left == {
        "answers.json",
        "answers.safetensors",
        "config.toml",
        "manifest.json",
        "log.jsonl",
        "classifiers",
        "metrics.json",
        "model",
        "quarantine.json",
    }
    assert call(*words)[1] == fitted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    words = ["--method", "softmax", "--no-report", "--epochs", 4, "--set", "training.batch_size=250"]
    result = pmal("fit", "--out", folder, *words)
    assert result.returncode == 0, result.stderr
    return folder, words


def test_a_streamed_set_gives_the_same_weights(tmp_path, uninterrupted):
    whole, words = uninterrupted
    streamed = pmal("fit", "--out", tmp_path / "run", *words, "--memory-limit", 0, "--workers", 2)
    assert streamed.returncode == 0, streamed.stderr
    assert_same_files(tmp_path / "run", whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bits(tmp_path, number, uninterrupted):
    whole, words = uninterrupted
    words = ["fit", "--out", tmp_path / "run", *words, "--checkpoint-seconds", 0]
    ended = python(MISBEHAVING, 0, number.name, 20, *words)
    assert ended.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "run the same command again" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run" / "metrics.json").exists()
    resumed = pmal(*words)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed_at_step" in (tmp_path / "run" / "log.jsonl").read_text()
    assert_same_files(tmp_path / "run", whole)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are counted in /proc")
@pytest.mark.parametrize(
    ("number", "wait"), [(signal.SIGINT, 0.0), (signal.SIGINT, 0.5), (signal.SIGTERM, 0.0)]
)
def test_a_signal_while_workers_start_is_one_line(tmp_path, uninterrupted, number, wait):
    words = ["fit", "--out", tmp_path / "run", *uninterrupted[1], "--memory-limit", 0, "--workers", 2]
    words += ["--epochs", 1000]  # on a busy machine the signal may come late: then it finds a training
    returned, lines = stopped(words, number, children=2, wait=wait)  # multiprocessing's own
    assert returned == 128 + number
    progress = ("reading ", "mean and deviation", "classifier 0: ", "about ", "warning: about ")
    [error] = [line for line in lines if not line.startswith(progress)]
    saved = r"classifier 0 is saved at step \d+ of \d+; run the same command again to resume"
    where = "run the same command again to resume where it stopped"
    assert re.fullmatch(f"error: interrupted: ({where}|{saved})", error)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are counted in /proc")
def test_ctrl_c_while_cells_start_is_a_line_of_each(tmp_path):
    words = [
        "benchmark",
        "--jobs",
        2,
        "--epochs",
        1,
        "--out",
        tmp_path / "results",
        "--work",
        tmp_path / "it",
    ]
    returned, lines = stopped(words, signal.SIGINT, children=3, wait=0.3)
    assert returned == 130
    assert all(line.startswith(("cell ", "error: ")) for line in lines), lines
    assert lines[-1] == "error: interrupted: run the same command again to resume where it stopped"


def test_ctrl_c_before_a_command_begins_is_one_line(call, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("pmal.cli.app", interrupted)
    assert_one_line_error(call("fit"), 130, "nothing was written")
    assert {signal.getsignal(number) for number in STOPPING} == {signal.SIG_DFL}, "no traceback at the end"


def test_a_signal_while_a_process_waits_for_the_others_is_one_line(call, raising, monkeypatch):
    def fail(error, message, code):
        print(message, file=sys.stderr)
        sys.exit(code)

    monkeypatch.setattr("pmal.__main__.is_alone", lambda: False)
    monkeypatch.setattr("pmal.cli.app", sys.exit)
    waiting = lambda code: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr("pmal._runtime.processes.torchrun.finish_rank", waiting)
    monkeypatch.setattr("pmal._runtime.processes.torchrun.fail_rank", fail)
    assert_one_line_error(call("fit"), 143, "interrupted: go on")


def stopped(words, number, children, wait):
    """Exit code and lines of a command whose process group is signaled once it has so many children."""
    command = [sys.executable, "-m", "pmal", *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and len(listed.read_text().split()) < children:
            time.sleep(0.01)
        time.sleep(wait)
        os.killpg(process.pid, number)  # as a terminal or a batch system does
        try:
            lines = process.communicate(timeout=HANGING)[1].decode().splitlines()
        finally:
            process.kill()
    return process.returncode, lines


def assert_same_files(folder, whole):
    for name in ("metrics.json", "classifiers/0/weights.safetensors", "quarantine.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


WRONG_USE = {
    "mnits": "did you mean 'mnist'?",
    "--family arlp": "did you mean 'arpl'?",
    "--split 7": "choose 0 to 4",
    "--encoder oscrl": "did you mean 'oscri'?",
    "--recipe stong": "did you mean 'strong'?",
    "--method sofmax": "did you mean 'softmax'?",
    "--set training.epoch=3": "training.epochs",
    "--set data.augmentation=stron": "did you mean 'strong'?",
    "--set training.optimizer=sdg": "did you mean 'sgd'?",
    "--set training.schedule=cosin": "did you mean 'cosine'?",
    "--set training.precision=float": "did you mean 'float32'?",
    "--set encoder.options={width=3}": "width",
    "--set data.image_size=4": "8 or more",
    "--device cuda:77": "device cpu",
    "--known 3": "at least 2",
    "--set mining.quality=topolgy": "did you mean 'topology'?",
    "--set mining.diversity=gaps": "did you mean 'gap'?",
    "--set optimization.init=hot": "warm or scratch",
    "--set ensemble.size=1": "2 or more",
    "--set encoder=resnet18": "expected a section [encoder]",
    "--set training.batch_size=0": "must be 2 or more",
    "--set data.source=mnits": "did you mean 'mnist'?",
    "--family all --known 1,2": "does not go with family",
    "--num-known 11": "choose 2 to 10",
    "--num-known 1": "choose 2 to 10",
}


@pytest.mark.parametrize("words", WRONG_USE)
def test_wrong_use_is_told_in_one_line_before_any_data_are_read(tmp_path, call, words):
    result = call("fit", *words.split(), "--out", tmp_path / "run")
    assert_one_line_error(result, 2, WRONG_USE[words])
    assert not (tmp_path / "run").exists()


def test_bad_data_is_told_in_one_line(tmp_path, call):
    assert_one_line_error(call("fit", tmp_path / "gone", "--out", tmp_path / "run"), 3, "gone")
    (tmp_path / "empty").mkdir()
    assert_one_line_error(call("fit", tmp_path / "empty", "--out", tmp_path / "run"), 3, "empty")
    assert_one_line_error(call("evaluate", tmp_path / "empty"), 3, "not a run folder")
    assert_one_line_error(call("fit", "svhn", "--data-root", tmp_path, "--out", tmp_path / "run"), 3, "svhn")
    assert not (tmp_path / "run").exists()


def test_unwritable_output_is_told_before_training(tmp_path, call):
    (tmp_path / "file").touch()
    result = call("fit", "--out", tmp_path / "file" / "run")
    assert_one_line_error(result, 2, "cannot write to", "choose another folder")


def test_a_user_s_mistake_shows_no_traceback_in_a_real_process(tmp_path):
    result = pmal("fit", tmp_path / "gone")
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)


def test_splits_as_json_and_their_defects(call):
    _, out, error = call("data", "splits", "cifar10", "--family", "arpl", "--json")
    table = json.loads(out)
    assert table[0] == {"known": [0, 6, 4, 9, 1, 7], "unknown": [2, 3, 5, 8]}
    assert len(table) == 5
    assert "splits 0 and 1 have the same known classes" in error
    assert_one_line_error(call("data", "splits", "cifar1"), 2, "did you mean 'cifar10'?")


def test_data_list_check_and_convert(tmp_path, call):
    listed = json.loads(call("data", "list", "--json")[1])
    assert {"sample", "mnist", "cifar+50", "imagenet-lt"} <= {entry["name"] for entry in listed}
    assert "1,000 test images" in call("data", "convert", "sample", tmp_path / "a.parquet")[1]
    written = json.loads(call("data", "convert", "sample", tmp_path / "b.parquet", "--json")[1])
    assert written == {"file": str(tmp_path / "b.parquet"), "images": {"train": 5000, "test": 1000}}
    checked = json.loads(call("data", "check", tmp_path / "a.parquet", "--json")[1])
    assert checked["parts"]["train"]["total"] == 5000
    assert checked["parts"]["train"]["per_class"]["7"] == 500
    assert checked["parts"]["test"]["sizes"] == {"28x28x1": 1000}
    assert checked["parts"]["train"]["readable"] == 5000
    assert checked["usable"]
    assert_one_line_error(call("data", "convert", "sample", tmp_path / "a.parquet"), 2, "--force")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_data_check_goes_through_to_the_end_and_tells_a_program_what_fit_would_refuse(tmp_path, call, form):
    for k in range(12):
        path = tmp_path / "zoo" / ("ant", "bee")[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(np.random.default_rng(k // 2).integers(0, 256, (20, 20, 1), np.uint8)))
    code, shown, _ = call("data", "check", tmp_path / "zoo", *form)
    assert code == 0, "equal images in different classes are for people to judge"
    assert "ant/0.png" in shown
    (tmp_path / "zoo" / "ant" / "2.png").write_bytes(b"broken")
    (tmp_path / "zoo" / "cow").mkdir()
    code, shown, error = call("data", "check", tmp_path / "zoo", *form)
    assert code == 3
    assert "ant/2.png" in shown
    assert "cow" in shown
    assert error.splitlines()[-1].startswith("error: ")
    assert "`pmal fit` would reject the data" in error.splitlines()[-1]


@pytest.fixture(scope="module")
def whole_method(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pmal") / "run"
    words = ["--no-report", "--epochs", 1, "--set", "training.batch_size=250", "--set", "mining.per_class=3"]
    result = pmal("fit", "--out", folder, *words)
    assert result.returncode == 0, result.stderr
    return folder, words, result.stdout


def test_the_whole_method_leaves_its_stages_and_stands_beside_softmax(whole_method, call):
    folder, _, out = whole_method
    left = {f.name for f in folder.iterdir() if not f.name.startswith(".")}
    assert left >= {"classifiers", "embeddings", "optimization", "prototypes.json", "prototypes.safetensors"}
    scores = [line.split()[:2] for line in out.splitlines() if "family=arpl" in line]
    assert [score for method, score in scores if method == "pmal"] == [
        "probability",
        "logit",
        "energy",
        "distance",
        "neighbors",
        "combined",
        "typicality",
        "decision",
        "mahalanobis",
        "vim",
        "react",
    ]
    assert "threshold of combined for 95 % of known images: accepts" in out
    assert "on average; with 300 held-out images, this threshold accepts 92.8 to 96.9 % (90 % range)\n" in out
    assert [score for method, score in scores if method == "softmax"] == [
        "probability",
        "logit",
        "energy",
        "typicality",
        "neighbors",
        "mahalanobis",
        "vim",
        "react",
    ]
    assert "cost in passes of every training image: pmal 3, softmax 1\n" in out
    assert json.loads((folder / "prototypes.json").read_text())["about"]["num_classes"] == 6
    code, again, error = call("evaluate", folder, "--json")
    assert code == 0, error
    assert json.loads(again) == json.loads((folder / "metrics.json").read_text())


def test_the_second_training_goes_on_where_it_was_killed(whole_method, tmp_path, call):
    whole, words, _ = whole_method
    shutil.copytree(whole, tmp_path / "run")
    for stage in ("optimization", "model"):
        shutil.rmtree(tmp_path / "run" / stage)
    (tmp_path / "run" / "metrics.json").unlink()
    assert_one_line_error(call("evaluate", tmp_path / "run"), 3, "not finished: run `pmal fit` again")
    words = ["fit", "--out", tmp_path / "run", *words, "--checkpoint-seconds", 0]
    assert python(MISBEHAVING, 0, "SIGKILL", 5, *words).returncode == -9
    assert (tmp_path / "run" / "optimization" / "checkpoint.json").exists()
    assert not (tmp_path / "run" / "metrics.json").exists()
    resumed = pmal(*words)
    assert resumed.returncode == 0, resumed.stderr
    for name in ("metrics.json", "optimization/weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()


def test_audit_of_a_run_and_its_refusal(tmp_path, call, uninterrupted):
    assert_one_line_error(call("audit", uninterrupted[0]), 2, "ensemble.size=2")
    words = ["--out", tmp_path / "run", "--epochs", 1, *TINY, "--set", "ensemble.size=2"]
    words += ["--set", "mining.per_class=3"]
    assert call("fit", *words)[0] == 0
    code, out, error = call("audit", tmp_path / "run", "--json")
    assert code == 0, error
    assert json.loads(out)["images"] == 2700, "all but those held out for the threshold"
    assert json.loads(out)["prototypes"] == 18
    lines = (tmp_path / "run" / "audit" / "audit.csv").read_text().splitlines()
    assert len(lines) == 2701
    assert len(list((tmp_path / "run" / "audit").glob("sheet-*.png"))) == 6
    refused = call("audit", tmp_path / "run", "--set", "training.epochs=2")
    assert_one_line_error(refused, 2, "is a run already", "--set")


def test_audit_of_data_takes_any_setting_and_says_what_to_do_about_others(tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for i in range(60):
        file = tmp_path / "photos" / f"class{i % 3}" / f"{i:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_png(random.integers(0, 256, (8, 8, 1), dtype=np.uint8)))
    words = ["audit", "photos", "--epochs", 1, "--set", "encoder.name=small", "--set", "seed=4"]
    code, out, error = call(*words, "--set", "mining.per_class=2", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["out"] == "runs/audit-photos-softmax-auto-0-small-seed4"
    assert (found["run"], found["prototypes"], found["warnings"]) == (f"{found['out']}/run", 6, [])
    assert found["images"] == 48, "of a folder, a fifth are test images"
    assert (tmp_path / found["out"] / "audit.csv").is_file()
    refused = call(*words)
    assert_one_line_error(refused, 2, "mining.per_class = 2, not 10", f"pmal audit {found['run']}")
    assert call("audit", found["run"], "--out", "again")[0] == 0
    table = (tmp_path / "again" / "audit.csv").read_text()
    assert table == (tmp_path / found["out"] / "audit.csv").read_text()
    assert_one_line_error(call(*words, "--set", "ensemble.size=1", "--out", "x"), 2, "ensemble.size=2")
    assert not (tmp_path / "x").exists()


def test_mine_on_frozen_features(tmp_path, call):
    random = np.random.default_rng(0)
    labels = np.arange(300) % 3
    z = random.normal(size=(300, 8)) + 3 * np.eye(3, 8)[labels]
    np.savez(tmp_path / "z.npz", z=z.astype(np.float32), labels=labels)
    words = ["mine", tmp_path / "z.npz", "--out", tmp_path / "found", "--per-class", 4]
    code, out, error = call(*words, "--json")
    assert code == 0, error
    assert json.loads(out)["prototypes"] == 12
    assert len((tmp_path / "found.samples.csv").read_text().splitlines()) == 301
    assert_one_line_error(call(*words), 2, "exist")
    assert call(*words, "--force")[0] == 0
    assert_one_line_error(call("mine", tmp_path / "no.npz", "--out", tmp_path / "x"), 3, "no.npz")
    assert_one_line_error(call(*words, "--force", "--quality", "topolgy"), 2, "did you mean 'topology'?")


MINE_REFUSED = {
    "--temperature mean": "--temperature mean: use median or a number",
    "--temperature 0": "--temperature 0: use median or a number",
    "--temperature 1e-320": "1e-100 or more",
    "--precision exakt": "exact or fast",
    "--landmarks 1": "0, or 2 or more",
    "--epsilon 1.5": "epsilon=1.5",
}


@pytest.mark.parametrize("words", MINE_REFUSED)
def test_wrong_options_of_mine_are_told_in_one_line(tmp_path, call, words):
    result = call("mine", tmp_path / "no.npz", "--out", tmp_path / "new" / "x", *words.split())
    assert_one_line_error(result, 2, MINE_REFUSED[words])
    assert not (tmp_path / "new").exists()


def test_the_options_of_mine_are_those_of_mine_prototypes(tmp_path, call):
    random = np.random.default_rng(0)
    labels, head = np.arange(60) % 3, random.normal(size=(3, 8))
    entries = {f"z_{u}": random.normal(size=(60, 8)) + 3 * head[labels] for u in range(2)}
    np.savez(tmp_path / "z.npz", labels=labels, W_0=head, W_1=head, **entries)
    options = {"temperature": 0.5, "precision": "fast", "landmarks": 30, "topology": "rms", "epsilon": 0.9}
    options |= {"per_class": 4, "seed": 2, "diversity": "kcenter", "quality": "topology"}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    code, _, error = call("mine", tmp_path / "z.npz", "--out", tmp_path / "found", *words)
    assert code == 0, error
    spaces = [(entries[f"z_{u}"], head) for u in range(2)]
    assert PrototypeSet.load(tmp_path / "found") == mine_prototypes(spaces, labels, **options)


def test_a_finished_run_is_not_taken_up_when_the_images_have_changed(tmp_path, call):
    random = np.random.default_rng(0)
    for i in range(60):
        file = tmp_path / "photos" / f"class{i % 3}" / f"{i:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_png(random.integers(0, 256, (8, 8, 1), dtype=np.uint8)))
    words = ["fit", tmp_path / "photos", "--method", "softmax", "--encoder", "small", "--epochs", 1]
    words += ["--out", tmp_path / "run", "--no-report"]
    assert call(*words)[0] == 0
    assert call(*words)[0] == 0
    file.write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    (tmp_path / "photos" / "class0" / "00.png").write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    (tmp_path / "photos" / "class1" / "01.png").write_bytes(encode_png(np.zeros((8, 8, 1), np.uint8)))
    code, _, error = call(*words)
    assert (code, error.splitlines()[-1].count("other classes or images")) == (3, 1)
