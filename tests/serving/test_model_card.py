"""The card says what the file is, and its example runs."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from pmal.data.decode import encode_png
from pmal.serving.model_card import model_card
from tests.serving.exports import exported
from tests.serving.tiny_model import pictures_of

ESTIMATE = {"value": 0.9, "low": 0.85, "high": 0.95}
METRICS = {
    "about": {
        "source": "`photos` | <b>",
        "split": "all/0",
        "known_classes": 3,
        "unknown_classes": 1,
        "method": "pmal",
        "encoder": "small",
        "epochs": 1,
        "augmentation": "none",
        "seed": 0,
    },
    "accuracy": ESTIMATE,
    "known_images": 1200,
    "unknown_images": 34,
    "scores": {"distance": {"auroc": ESTIMATE, "fpr95": ESTIMATE, "oscr": ESTIMATE}},
    "decision": {"score": "distance", "accept": 0.95, "known_accepted": 0.95, "unknown_rejected": 0.5},
}


def card(name="distance", metrics=METRICS, **changes):
    model, found = exported(name)
    header = replace(found.header, **changes)
    return model_card("m.onnx", header, found.parity, metrics, model.reference is not None)


def test_it_has_figures_threshold_limits_and_room_for_a_license():
    text = card()
    assert "Accuracy 90.0 [85.0, 95.0] on 1,200 known test images" in text
    assert "AUROC 90.0" in text
    assert "rejects 50.0 % of the unknown ones" in text
    assert "accepts at least 0.95 of known samples (calibrated on 60)" in text
    assert "every decision the same" in text
    assert "To be filled in" in text[text.index("## License") :]
    assert "Not tested on" in text


def test_figures_of_another_rule_are_left_out():
    assert "At the threshold" not in card(accept=0.5)
    assert "AUROC" not in card(score="logit")
    without = card(metrics=None)
    assert "Not measured" in without
    assert "No figures on unknown classes" in without


def test_classes_added_later_are_said_to_be_untested():
    assert "in none of the figures: `noise`" in card("added")
    assert "to the prototypes" not in card("softmax")


def test_odd_names_stay_names():
    text = card(class_names=("<script>alert(1)</script>", "a`b", "two\nlines"))
    assert "`<script>alert(1)</script>`, `` a`b ``, `two\\nlines`" in text


@pytest.mark.parametrize(("name", "channels"), [("distance", 1), ("softmax", 3)])
def test_its_example_runs_as_it_stands(tmp_path, name, channels):
    (tmp_path / "m.onnx").write_bytes(exported(name)[1].data)
    picture = pictures_of(0, 1, seed=7, channels=channels)[0]
    (tmp_path / "image.png").write_bytes(encode_png(picture.permute(1, 2, 0).numpy()))
    [code] = re.findall(r"```python\n(.*?)```", card(name), re.S)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, score, threshold = done.stdout.rsplit(maxsplit=2)
    assert found == ("cat" if name == "distance" else found)
    assert (float(score) <= float(threshold)) == (found != "unknown")
