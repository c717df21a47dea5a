"""Tensors are taken only where they fit model.json and each other."""

import json
import math

import pytest
import torch

from pmal.errors import DataError, Interrupted
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from tests.serving.bundles import edit_tensors, fingerprint_of, forge_record, load, seal, softmax


def poke(name, at, value):
    def change(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name][at] = value

    return change


def swap(name, make):
    return lambda tensors: tensors.update({name: make(tensors.get(name))})


def keep(labels, channels, label=2):
    """Five embeddings of so many channels, or none, and so many labels."""

    def change(tensors):
        tensors["labels"] = torch.tensor([label] * labels)
        if channels is not None:
            tensors["z"] = torch.zeros(5, channels)

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("reference", poke("prototypes", (0, 0, 0), math.nan), "NaN"),
        ("reference", poke("prototypes", (2, 1, 5), math.inf), "NaN or infinite"),
        ("reference", poke("training", (3, 0), math.nan), "NaN"),
        ("reference", poke("mask", (1, 1), True), "other numbers of prototypes"),
        ("reference", swap("prototypes", torch.Tensor.half), "prototypes is torch.float16"),
        ("reference", swap("prototypes", lambda t: t[:2]), "prototypes is"),
        ("reference", swap("prototypes", lambda t: t[..., :5]), "prototypes is"),
        ("reference", swap("prototypes", lambda t: t[0, 0, 0]), "prototypes is"),
        ("reference", swap("mask", torch.Tensor.long), "mask is torch.int64"),
        ("reference", swap("mask", lambda t: t[:, :0]), "mask is"),
        ("reference", swap("mask", lambda t: t[0, 0]), "mask is"),
        ("reference", swap("training", lambda t: t[:, :7]), "training is"),
        ("reference", swap("training", lambda t: t[:0]), "training is"),
        ("reference", swap("pictures", lambda t: t[1:]), "pictures is"),
        ("reference", swap("pictures", torch.Tensor.float), "pictures is"),
        ("reference", swap("pictures", lambda t: t[0]), "pictures is"),
        ("reference", swap("pictures", lambda t: t.expand(-1, 3, -1, -1)), "pictures is"),
        ("reference", swap("hook", lambda t: torch.zeros(1)), "foreign tensor 'hook'"),
        ("reference", lambda tensors: tensors.pop("mask"), "has no mask"),
        ("calibration", swap("scores.distance", torch.Tensor.float), "scores.distance is"),
        ("calibration", swap("scores.distance", lambda t: t[1:]), "scores.distance is"),
        ("calibration", swap("scores.combined", lambda t: t[1:]), "scores.combined is"),
        ("calibration", swap("scores.combined", lambda t: t[0]), "scores.combined is"),
        ("calibration", swap("scores.hook", lambda t: torch.zeros(45).double()), "foreign tensor"),
        ("calibration", swap("predictions", lambda t: t[1:]), "predictions is"),
        ("calibration", poke("predictions", 3, 3), "predictions of a class"),
        ("calibration", poke("predictions", 3, -1), "predictions of a class"),
        ("calibration", swap("predictions", torch.Tensor.int), "predictions is"),
        ("calibration", keep(5, 3), "z is"),
        ("calibration", keep(5, None), "labels is"),
        ("calibration", keep(4, 128), "labels is"),
        ("calibration", keep(5, 128, 3), "labels of a class"),
        ("calibration", keep(5, 128, -1), "labels of a class"),
        ("calibration", lambda tensors: tensors.pop("predictions"), "has no predictions"),
        ("weights", swap("head.weight", torch.Tensor.double), "another network"),
        ("weights", swap("head.weight", lambda t: t[:2]), "another network"),
        ("weights", swap("hook", lambda t: torch.zeros(1)), "another network"),
        ("weights", lambda tensors: tensors.pop("head.bias"), "another network"),
    ],
)
def test_tensors_that_do_not_fit(folder, file, change, reason):
    edit_tensors(folder, f"{file}.safetensors", change)
    with pytest.raises(DataError, match=rf"model/{file}\.safetensors: .*{reason}"):
        load(folder)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_what_model_json_shows_is_what_the_tensors_say(folder, name):
    edit_tensors(folder, "weights.safetensors", swap(name, lambda t: t + 1))
    with pytest.raises(DataError, match=r"model\.json: its normalization"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("reference", poke("prototypes", (1, 1, 0), math.nan)),  # no prototype is there
        ("calibration", swap("scores.combined", lambda t: torch.zeros(45).double())),
        ("calibration", keep(5, 128)),
    ],
)
def test_tensors_that_fit(folder, file, change):
    edit_tensors(folder, f"{file}.safetensors", change)
    with pytest.raises(DataError, match=r"model\.json: its fingerprint is not that of the tensors"):
        load(folder)  # another model than it was saved as, and nothing else
    forge_record(folder, lambda content: content.update(fingerprint=fingerprint_of(folder)))
    load(folder)


@pytest.mark.parametrize("name", ["scores.distance", "scores.neighbors", "scores.combined"])
def test_scores_that_the_model_cannot_have_are_foreign(tmp_path, name):
    save_model(tmp_path / "model", softmax(Rule("logit"), calibrated=True))
    edit = swap(name, lambda t: torch.zeros(45).double())
    edit_tensors(tmp_path / "model", "calibration.safetensors", edit)
    with pytest.raises(DataError, match=f"has a foreign tensor '{name}'"):
        load(tmp_path / "model")


def test_an_interruption_is_not_taken_for_a_fault_of_the_file(folder, monkeypatch):
    def stop(spec):
        raise Interrupted(2, "interrupted")

    monkeypatch.setattr("pmal.rejection.bundle.stored_network.Classifier", stop)
    with pytest.raises(Interrupted):
        load(folder)


def name_a_larger_network(content, **options):
    content["network"]["encoder"] = {
        **content["network"]["encoder"],
        "name": "wide_resnet",
        "options": options,
    }


@pytest.mark.parametrize("options", [{"width": 400}, {"depth": 60_004, "width": 1}], ids=["wide", "deep"])
def test_a_network_of_gigabytes_is_refused_before_it_takes_any(folder, monkeypatch, options):
    forge_record(folder, lambda content: name_a_larger_network(content, **options))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda *_, **__: pytest.fail("numbers were drawn"))
    made, old = [], torch.nn.Conv2d.__init__

    def count(conv, *args, **kwargs):
        old(conv, *args, **kwargs)
        made.append(conv.weight.device.type)

    monkeypatch.setattr(torch.nn.Conv2d, "__init__", count)
    with pytest.raises(DataError, match=r"weights.safetensors: weights of another network"):
        load(folder)
    assert set(made) == {"meta"}
    assert len(made) < 1000


def test_images_of_gigabytes_are_refused_before_one_is_made(folder):
    forge_record(folder, lambda content: content["network"].update(image_size=10**6))
    with pytest.raises(DataError, match=r"model\.json: an image of 1000000 x 1000000 pixels: takes"):
        load(folder)


def test_thresholds_that_the_scores_do_not_give(folder):
    edit_tensors(folder, "calibration.safetensors", swap("scores.distance", lambda t: t + 1))
    with pytest.raises(DataError, match=r"model\.json: its thresholds"):
        load(folder)


def test_a_tensor_of_a_type_that_torch_lacks(folder):
    entry = {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]}
    header = json.dumps({"mask": entry}).encode()
    (folder / "reference.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    seal(folder)
    with pytest.raises(DataError, match=r"reference\.safetensors: "):
        load(folder)


def put(*path, value):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


def other_encoder(content):
    content["network"]["encoder"].update({"name": "wide_resnet", "options": {"depth": "x"}})


def add_class(content):
    content["classes"].append(dict(content["classes"][0], name="new"))


def forget_prototypes(content):
    content["distance"] = None
    for entry in content["classes"]:
        entry["prototypes"] = None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("network", "encoder", "name", value="../small"), r"model\.json: its network cannot be built"),
        (put("network", "encoder", "name", value="oscri"), r"weights\.safetensors: weights of another"),
        (put("network", "encoder", "options", value={"depth": 3}), r"model\.json: its network cannot"),
        (other_encoder, r"model\.json: its network cannot be built"),
        (
            put("network", "encoder", "projection", value="linear"),
            r"weights\.safetensors: weights of another",
        ),
        (put("network", "encoder", "bias", value=False), r"weights\.safetensors: weights of another"),
        (put("network", "channels", value=3), r"weights\.safetensors: weights of another"),
        (put("network", "channels", value=-1), r"model\.json: its network cannot be built"),
        (put("network", "image_size", value=0), r"model\.json: its network cannot be built"),
        (put("calibration", "images", value=44), r"calibration\.safetensors: predictions is"),
        (put("calibration", value=None), r"sha256\.json: lists 'calibration\.safetensors'"),
        (put("calibration", "scale", value=None), r"calibration\.safetensors: .*'scores\.combined'"),
        (
            put("calibration", "scale", value={"hook": {"weight": 1.0, "quantiles": [1.0, 2.0]}}),
            r"calibration\.safetensors: has no scores\.hook",
        ),
        (put("classes", 0, "threshold", value=9.0), r"model\.json: its thresholds"),
        (put("classes", 0, "prototypes", value=[]), r"reference\.safetensors: other numbers"),
        (put("rule", "accept", value=0.5), r"model\.json: its thresholds"),
        (forget_prototypes, r"sha256\.json: lists 'reference\.safetensors'"),
        (add_class, r"reference\.safetensors: mask is"),
    ],
)
def test_a_model_json_that_does_not_fit_the_tensors(folder, change, reason):
    """Although every checksum says that it does."""
    forge_record(folder, change)
    with pytest.raises(DataError, match=reason):
        load(folder)
