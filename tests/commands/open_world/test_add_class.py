"""`pmal add-class`: one more class for the model of a run, a bundle or a saved classifier."""

import json
import signal

import numpy as np
import pytest
import torch

from pmal import OpenSetClassifier
from pmal._runtime.files import sha256, write_json
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.model import Rule
from pmal.run.run_folder import only_writer
from pmal.serving.answers import image_files
from tests.serving.tiny_model import CLASSES, make_model, pictures_of
from tests.support.changing_models import listing, model_with_held_out, write_images
from tests.support.command_line import assert_one_line_error

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path):
    """A finished run folder with a model that rejects by the energy."""
    folder = tmp_path / "run"
    save_model(folder / "model", model_with_held_out(Rule("energy")))
    (folder / "config.toml").touch()
    sums = {f"model/{file.name}": sha256(file) for file in (folder / "model").iterdir()}
    write_json(folder / "manifest.json", {"pmal": "0", "sha256": {"config.toml": "as it was", **sums}})
    return folder


@pytest.fixture
def noise(tmp_path):
    """Eight images of no class, as files."""
    return write_images(tmp_path / "noise", pictures_of(3, 8, seed=5))


def test_the_class_is_named_afterwards_and_what_changed_is_printed(run, noise, tmp_path, call):
    more = write_images(tmp_path / "more", pictures_of(3, 8, seed=6))
    code, out, error = call("add-class", run, "noise", noise)
    assert (code, error) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(
        "class noise: 4 prototypes; takes 0 of 60 held-out samples from the other classes"
    )
    assert "accuracy 100.0% -> 100.0%" in first
    assert first.endswith("; the rule changed from energy to distance")
    assert second == f"model: {run / 'model'} (version 2)"
    answers = json.loads(call("predict", run, more, "--json")[1])
    assert answers["model"]["score"] == "distance"
    assert [answer["nearest"] for answer in answers["answers"]].count("noise") > 5
    assert answers["answers"][0]["prototypes"][0]["file"].startswith("noise/")
    assert load_model(run / "model", CPU).class_names == (*CLASSES, "noise")


def test_json_and_the_checksums_of_the_run(run, noise, call):
    (run / "model.onnx").touch()
    (run / "report.html").touch()
    code, out, error = call("add-class", run / "model", "noise", *sorted(noise.iterdir()), "--json")
    assert (code, error) == (0, "")
    found = json.loads(out)
    assert (found["model"], found["name"], found["images"]) == (str(run / "model"), "noise", 8)
    assert (found["prototypes"], found["held_out"], found["captured"]) == (4, 60, 0)
    assert (found["accuracy_before"], found["accuracy_after"]) == (1.0, 1.0)
    rule = {"rule_changed": True, "rule_before": "energy", "rule_after": "distance"}
    assert rule.items() <= found.items()
    assert found["older"] == [str(run / name) for name in ("model.onnx", "report.html")]
    sums = json.loads((run / "manifest.json").read_text())["sha256"]
    assert sums.pop("config.toml") == "as it was"
    files = [file for part in ("model", "versions") for file in (run / part).rglob("*") if file.is_file()]
    assert sums == {str(file.relative_to(run)): sha256(file) for file in files}


def test_files_of_the_model_before_are_named(run, noise, call, monkeypatch):
    (run / "model.onnx").touch()
    (run / "manifest.json").unlink()  # as that of a run that was killed late
    monkeypatch.chdir(run / "model")
    code, out, _ = call("add-class", ".", "noise", noise)
    assert code == 0
    assert out.splitlines()[-1] == f"still of the model before: {run / 'model.onnx'}"
    assert load_model(run / "model", CPU).added == 1
    assert not (run / "manifest.json").exists()


def test_a_bundle_anywhere_and_a_second_class(tmp_path, noise, call):
    save_model(tmp_path / "shipped", model_with_held_out(Rule("combined", 0.8)))
    code, out, error = call("add-class", tmp_path / "shipped", "noise", noise)
    assert code == 0, error
    assert "from combined of distance, neighbors, logit to combined of distance, neighbors\n" in out
    code, out, error = call("add-class", tmp_path / "shipped", "more", noise / "0.png", noise / "1.png")
    assert code == 0, error
    assert "class more: 2 prototypes" in out
    assert "the rule changed from combined of distance, neighbors to distance" in out  # too few neighbors
    model = load_model(tmp_path / "shipped", CPU)
    assert model.class_names == (*CLASSES, "noise", "more")
    assert not (tmp_path / ".lock").exists()


def test_a_saved_classifier_keeps_its_kind_of_labels(tmp_path, noise, call):
    images = torch.cat([pictures_of(k, 40, seed=1) for k in range(3)])[:, 0].numpy()
    settings = {"data": {"flip": "no", "augmentation": "none"}}
    options = {"encoder": "small", "epochs": 1, "random_state": 0, "device": "cpu", "settings": settings}
    made = OpenSetClassifier(**options, accept=0.7).fit(images, np.arange(3).repeat(40))
    made.set_params(reject_by="energy").save(tmp_path / "saved")
    assert_one_line_error(call("add-class", tmp_path / "saved", "noise", noise), 2, "are integers")
    assert_one_line_error(call("add-class", tmp_path / "saved", "2", noise), 2, "exists already")
    for word, folder in (("7", tmp_path / "saved"), ("9", tmp_path / "saved" / "model")):
        code, _, error = call("add-class", folder, word, noise)
        assert code == 0, error
    loaded = OpenSetClassifier.load(tmp_path / "saved", device="cpu")
    assert loaded.classes_.tolist() == [0, 1, 2, 7, 9]
    assert (loaded.reject_by, loaded.model_.rule.score) == ("distance", "distance")


def test_what_cannot_be_used_is_told_in_one_line_and_nothing_is_written(run, noise, tmp_path, call):
    before = listing(run)
    bad = noise / "bad.png"
    bad.write_bytes(b"no image")
    assert_one_line_error(call("add-class", run, "noise", noise), 3, f"{bad}: not a JPEG")
    gone = tmp_path / "gone.png"
    assert_one_line_error(call("add-class", run, "noise", noise / "0.png", gone), 3, f"{gone}: No such file")
    assert_one_line_error(call("add-class", tmp_path / "nowhere", "noise", noise / "0.png"), 3, "nowhere")
    assert_one_line_error(call("add-class", noise, "noise", noise / "0.png"), 3, "neither a run folder nor")
    for name, part in (("cat", "'cat' exists already"), (" ", "name of the new class is empty")):
        assert_one_line_error(call("add-class", run, name, noise / "0.png"), 2, part)
    with only_writer(run):
        busy = call("add-class", run, "noise", noise / "0.png")
    assert_one_line_error(busy, 2, f"another process is working in {run}")
    assert call("add-class", run, "noise")[0] == 2
    assert listing(run) == before


def test_a_model_without_prototypes_is_refused(tmp_path, noise, call):
    save_model(tmp_path / "plain", make_model(Rule("logit"), prototypes=False))
    assert_one_line_error(call("add-class", tmp_path / "plain", "noise", noise), 2, "no prototypes")


def test_interrupted_it_leaves_the_model_as_it_was(run, noise, call, monkeypatch):
    before = listing(run)
    monkeypatch.setattr(image_files, "list_files", lambda _: signal.raise_signal(signal.SIGINT))
    assert_one_line_error(call("add-class", run, "noise", noise), 130, "interrupted: nothing was written")
    assert listing(run) == before
