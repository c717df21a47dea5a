"""A run with a pretrained network: the finished model needs neither its folder nor the hub."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.encoders.pretrained.tiny_models import save_tiny
from tests.support.command_line import assert_one_line_error
from tests.support.hanging import HANGING

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["dinov2", "clip"])
def test_fit_predict_and_export_agree(family, folder, call):
    save_tiny(family, folder / "tiny")
    words = ["fit", "images", "--encoder", "hf/./tiny", "--out", "run", "--epochs", 2, "--no-report"]
    code, _, error = call(*words)
    assert code == 0, error
    shutil.rmtree("tiny")  # from here on the run is all there is
    files = [f"images/{name}/{i}.png" for name in ("blue", "green", "red") for i in range(3)]
    code, out, error = call("predict", "run", *files, "--json")
    assert code == 0, error
    code, _, error = call("export", "run", "--out", "run.onnx")
    assert code == 0, error
    expected = json.loads(out)["answers"]
    answers = json.loads(call("predict", "run.onnx", *files, "--json")[1])["answers"]
    assert len(answers) == len(expected) == 9
    assert len({answer["nearest"] for answer in expected}) > 1
    for got, wanted in zip(answers, expected, strict=True):
        assert [got[k] for k in ("image", "class", "known", "nearest")] == [
            wanted[k] for k in ("image", "class", "known", "nearest")
        ]
        assert got["score"] == pytest.approx(wanted["score"], rel=1e-3, abs=1e-5)
    assert call(*words)[0] == 0  # taken up again without the folder of the model


def test_a_model_of_the_hub_that_cannot_be_reached_is_told_in_one_line(folder):
    """In a process of its own: the library reads once whether it may use the network."""
    words = ["fit", "images", "--encoder", "hf/some/model", "--out", "run"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    found = subprocess.run(
        [sys.executable, "-m", "pmal", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    result = (found.returncode, found.stdout, found.stderr)
    assert_one_line_error(
        result, 2, "hf/some/model cannot be had", "`hf download some/model --local-dir FOLDER`"
    )
    assert not (folder / "run").exists()
