"""`pmal export`, and `pmal predict` of its file where there is no torch."""

import json
import os
import re
import subprocess
import sys

import pytest

from pmal.commands.export import _metrics
from pmal.errors import PmalError
from pmal.serving.onnx import exporting as export_onnx
from tests.serving.exports import exported
from tests.serving.tiny_model import CLASSES
from tests.support.bad_images import spoil
from tests.support.command_line import assert_one_line_error

pytestmark = pytest.mark.slow

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ImportError(f"no module named {{name}}")

sys.meta_path.insert(0, Missing())
from pmal.__main__ import main
main()
"""
MISSING = {"torch", "onnx", "onnxscript", "pyarrow", "sklearn", "scipy", "numba", "safetensors"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(exported("distance")[1].data)
    return path


def without_torch(*words):
    command = [sys.executable, "-c", WITHOUT.format(missing=MISSING), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_run_is_exported_beside_its_model_with_a_card(run, photos, call):
    code, out, error = call("export", run, "--format", "onnx", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["file"] == str(run / "model.onnx")
    assert (
        found["images"] == 1073
    )  # the settings of this run are all defaults, and so is its data: the sample
    assert found["decisions_differ"] == 0
    assert (run / "model.md").read_text().startswith("# Model card")
    assert os.stat(run / "model.onnx").st_size == found["bytes"]
    assert_one_line_error(call("export", run), 2, "--force")
    answers = [json.loads(call("predict", m, photos, "--json")[1]) for m in (run, run / "model.onnx")]
    classes = [[answer["class"] for answer in found["answers"]] for found in answers]
    assert classes[0] == classes[1]
    assert "unknown" in classes[0]
    assert CLASSES[0] in classes[0]


def test_a_model_without_its_run_has_no_figures(tmp_path):
    assert _metrics(tmp_path) is None
    (tmp_path / "metrics.json").write_text('{"accuracy": 1}')
    assert _metrics(tmp_path) == {"accuracy": 1}


def test_a_refused_file_is_not_left_on_disk(run, tmp_path, call, monkeypatch):
    def refuse(*_):
        raise PmalError("not exported: 3 of 9 decisions differ")

    data = exported("distance")[1].data  # made once, by the function that is replaced now
    monkeypatch.setattr(export_onnx, "build_onnx", lambda *_: data)
    monkeypatch.setattr(export_onnx, "check_parity", refuse)
    assert_one_line_error(call("export", run, "--out", tmp_path / "m.onnx"), 1, "decisions differ")
    assert list(tmp_path.iterdir()) == []


def test_prediction_needs_no_torch_and_says_the_same(run, file, photos, call):
    bad = spoil(photos)
    words = [photos.parent / "gone.png", photos, photos.parent / "empty"]
    for form in (["--json"], ["--csv", "--top", "1"], []):
        expected, found = call("predict", run, *words, *form), without_torch("predict", file, *words, *form)
        assert found[0] == expected[0] == 3
        assert found[2].splitlines()[-1] == "error: 4 of 12 could not be answered"
        if form == ["--json"]:
            assert_same_answers(json.loads(found[1]), json.loads(expected[1]))
        else:
            assert without_figures(found[1]) == without_figures(expected[1])
            assert all(str(path) in found[2] for path in bad)


def test_another_acceptance_rate_decides_as_the_run_does(run, file, photos, call):
    answers = {}
    for rate in ("0.95", "0.3"):
        words = (photos, "--json", "--accept", rate)
        expected, found = call("predict", run, *words), without_torch("predict", file, *words)
        assert (found[0], expected[0]) == (0, 0), found[2]
        answers[rate] = json.loads(found[1])["answers"]
        assert_same_decisions(answers[rate], json.loads(expected[1])["answers"])
    assert answers["0.3"][0]["threshold"] < answers["0.95"][0]["threshold"]


def assert_same_decisions(found, expected):
    assert [answer["class"] for answer in found] == [answer["class"] for answer in expected]
    assert [answer["threshold"] for answer in found] == pytest.approx([a["threshold"] for a in expected])


def without_figures(text):
    return re.sub(r"\d+\.\d+(e-\d+)?", "#", text).split()


def assert_same_answers(found, expected):
    assert found["errors"] == expected["errors"]
    assert found["model"] | {"folder": ""} == expected["model"] | {"folder": ""}
    for got, wanted in zip(found["answers"], expected["answers"], strict=True):
        assert got.keys() == wanted.keys()
        same = ("image", "class", "known", "nearest", "threshold")
        assert [got[name] for name in same] == [wanted[name] for name in same]
        assert got["score"] == pytest.approx(wanted["score"], rel=1e-4)
        assert [p["file"] for p in got["prototypes"]] == [p["file"] for p in wanted["prototypes"]]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--score", "logit"], "`pmal export`"),
        (["--threshold", 1], "`pmal export`"),
        (["--global"], "`pmal export`"),
        (["--device", "cuda"], "leave --device out"),
    ],
)
def test_the_rule_of_a_file_is_part_of_it(file, photos, call, words, part):
    assert_one_line_error(call("predict", file, photos, *words), 2, part)


def test_wrong_files_and_options_are_told_in_one_line(run, photos, tmp_path, call):
    (tmp_path / "x.onnx").write_bytes(b"no model")
    assert_one_line_error(call("predict", tmp_path / "x.onnx", photos), 3, "x.onnx")
    assert_one_line_error(call("predict", tmp_path / "gone.onnx", photos), 3, "no such file")
    assert_one_line_error(call("export", tmp_path / "gone"), 3, "no such folder")
    assert_one_line_error(call("export", run, "--format", "onx"), 2, "did you mean 'onnx'?")
    assert_one_line_error(call("export", run, "--out", tmp_path / "m.bin"), 2, ".onnx")
    assert_one_line_error(call("export", run, "--score", "distanse", "--out", tmp_path / "m.onnx"), 2, "mean")
