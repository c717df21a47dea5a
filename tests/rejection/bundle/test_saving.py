"""What is loaded answers like what was saved, to the last bit; everything else is refused by its name."""

import dataclasses
import importlib.metadata
import itertools
import json
import math
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.errors import DataError, PmalError, UsageError
from pmal.rejection.bundle.saving import _fingerprint, describe_model, load_model, save_model
from pmal.rejection.model import Prototype, Rule
from tests.serving.bundles import (
    FILES,
    TENSORS,
    edit_record,
    listing,
    load,
    make_model,
    make_network,
    pictures,
    seal,
    softmax,
)


def unusual():
    model = make_model(make_network(encoder=EncoderConfig("small", projection="linear", bias=False)))
    model.calibration.scores["distance"][3] = math.inf
    model.calibration.scores["logit"][4] = math.nan
    first = (Prototype(1, "a.png", -math.inf, 0.0), Prototype(2, "b.png", 1e4, 0.0))
    return dataclasses.replace(model, gallery=(first, *model.gallery[1:]))


MODELS = {
    "pmal": lambda: make_model(make_network()),
    "nearest": lambda: make_model(make_network(), distance="nearest"),
    "combined": lambda: make_model(make_network(), Rule("combined", 0.6)),
    "per class": lambda: make_model(make_network(), Rule("neighbors", 0.3, per_class=True)),
    "channels last": lambda: make_model(make_network().use_channels_last()),
    "added class": lambda: make_model(make_network(), added=("new",)),
    "set by hand": lambda: make_model(make_network(), Rule("logit", threshold=-0.1), calibrated=False),
    "accepts all": lambda: make_model(make_network(), Rule("logit", threshold=math.inf)),
    "accepts none": lambda: make_model(make_network(), Rule("logit", threshold=-math.inf)),
    "no gallery": lambda: dataclasses.replace(make_model(make_network()), gallery=(), pictures=None),
    "softmax": lambda: softmax(Rule("probability", 0.9), calibrated=True),
    "softmax by hand": lambda: softmax(Rule("energy", threshold=0.25), calibrated=False),
    "unusual": unusual,
}


def same(a, b):
    """Every field of two dataclasses, tensors by their bits."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return type(a) is type(b) and (a == b).all() if hasattr(a, "dtype") else a == b


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_round_trip_to_the_last_bit(kind, tmp_path):
    model = MODELS[kind]()
    save_model(tmp_path / "model", model)
    found = load(tmp_path / "model")
    assert same(found.answer(pictures(20, 3)), model.answer(pictures(20, 3)))
    assert same(found.classifier.state_dict(), model.classifier.state_dict())
    for name in ("class_names", "rule", "reference", "gallery", "pictures"):
        assert same(getattr(found, name), getattr(model, name)), name
    if model.calibration:
        assert same(dict(found.calibration.scores), dict(model.calibration.scores))
        assert same(found.calibration.predictions, model.calibration.predictions)
    assert same(found.calibration and found.calibration.scale, model.calibration and model.calibration.scale)
    assert found.classifier.spec == model.classifier.spec
    assert not found.classifier.training


def test_a_model_without_threshold_keeps_saying_so(tmp_path):
    save_model(tmp_path / "model", softmax(Rule("logit"), calibrated=False))
    with pytest.raises(UsageError, match="no threshold"):
        load(tmp_path / "model").answer(pictures(1))
    assert {entry["threshold"] for entry in describe_model(tmp_path / "model")["classes"]} == {None}


def test_files_and_modes(original, tmp_path):
    assert listing(original) == sorted(FILES)
    assert set(json.loads((original / "sha256.json").read_text())) == set(FILES) - {"sha256.json"}
    before = os.umask(0o027)
    try:
        save_model(tmp_path / "deep" / "model", softmax(Rule("logit"), calibrated=False))
    finally:
        os.umask(before)
    folder = tmp_path / "deep" / "model"
    assert listing(folder) == ["model.json", "sha256.json", "weights.safetensors"]
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o640}
    assert folder.stat().st_mode & 0o777 == 0o750
    assert listing(tmp_path / "deep") == ["model"]


def test_the_same_model_makes_the_same_files(original, tmp_path):
    save_model(tmp_path / "model", make_model(make_network()))
    for name in FILES:
        assert (tmp_path / "model" / name).read_bytes() == (original / name).read_bytes(), name


def test_model_json_is_for_people(original):
    about = describe_model(original)
    assert about == json.loads((original / "model.json").read_text(encoding="utf-8"))
    assert "größe" in (original / "model.json").read_text(encoding="utf-8")
    assert about["normalization"]["std"] == pytest.approx([0.3])
    limit = make_model(make_network()).limits()[0].item()
    first = about["classes"][0]
    assert (first["name"], first["threshold"]) == ("ant", limit)
    assert first["prototypes"][1] == {
        "id": 1,
        "file": "0/1.png",
        "r": math.exp(-0.1),
        "log_r": -0.1,
        "gap": 1 / 3,
    }
    assert set(about["calibration"]["scale"]) == {"distance", "neighbors", "logit"}
    assert about["written_by"]["libraries"]["torch"] == importlib.metadata.version("torch")
    assert about["distance"] == "point-to-set"


def test_loading_leaves_the_callers_random_numbers_alone(original):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(original)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_found(folder, name):
    content = (folder / name).read_bytes()
    for place, bit in itertools.product([0.0, 0.003, 0.02, 0.3, 0.5, 0.77, 1.0], (0, 5, 7)):
        changed = bytearray(content)
        changed[min(int(len(content) * place), len(content) - 1)] ^= 1 << bit
        (folder / name).write_bytes(changed)
        # A flip in the sums may show as another file's that differs from them: the message names both.
        with pytest.raises(DataError, match=name):
            load(folder)


@pytest.mark.parametrize("name", FILES)
def test_truncated_missing_and_replaced_files_are_named(folder, name):
    content = (folder / name).read_bytes()
    for kept in (0, 1, 7, len(content) // 2, len(content.rstrip()) - 1):
        (folder / name).write_bytes(content[:kept])
        with pytest.raises(DataError, match=rf"model/{name}: "):
            load(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"model/{name}: missing"):
        load(folder)
    (folder / name).mkdir()
    with pytest.raises(DataError, match=rf"model/{name}: not a file"):
        load(folder)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("trapped",)


DEEP = b'{"a":' * 100_000
FOREIGN = {
    "pickle": pickle.dumps(Trap()),
    "text pickle": pickle.dumps(Trap(), protocol=0),
    "empty": b"",
    "list": b"[]",
    "object": b"{}",
    "deep": DEEP,
    "nan": b'{"format": NaN}',
    "not utf-8": b'{"format": "\xff"}',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("sealed", [False, True])
def test_anything_else_in_place_of_a_file(folder, name, sealed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in FOREIGN.values():
        (folder / name).write_bytes(content)
        if sealed and name != "sha256.json":
            seal(folder)
        with pytest.raises(DataError, match=rf"model/{name}: ") as caught:
            load(folder)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "trapped").exists()


def test_torch_files_are_refused(folder):
    torch.save({"w": torch.zeros(3)}, folder / "weights.safetensors")
    seal(folder)
    with pytest.raises(DataError, match=r"weights\.safetensors: not a safetensors file"):
        load(folder)


@pytest.mark.parametrize("name", ["model.json", "sha256.json"])
def test_a_large_json_is_refused_before_it_is_read(folder, name):
    os.truncate(folder / name, (64 << 20) + 1)
    with pytest.raises(DataError, match=rf"{name}: larger than 64 MiB"):
        load(folder)


def test_missing_folder_and_a_file_in_its_place(tmp_path):
    with pytest.raises(DataError, match="nothing: no such folder"):
        load(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: not a folder"):
        load(tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("other", ["seed", "classes", "rule"])
def test_files_of_two_models_do_not_mix(folder, tmp_path, name, other):
    network = make_network(1) if other == "seed" else make_network()
    network = make_network(names=("ant", "bee", "cow")) if other == "classes" else network
    rule = Rule("distance", 0.7) if other == "rule" else None
    save_model(tmp_path / "other", make_model(network, rule))
    shutil.copy(tmp_path / "other" / name, folder / name)
    with pytest.raises(DataError, match=rf"model/{name}: damaged"):
        load(folder)
    seal(folder)
    with pytest.raises(DataError, match=rf"model/{name}: belongs to another model"):
        load(folder)


def test_two_models_that_differ_in_weights_alone_do_not_mix(tmp_path):
    model = softmax(Rule("logit", threshold=0.0), calibrated=False)
    save_model(tmp_path / "model", model)
    with torch.no_grad():
        model.classifier.head.weight[0, 0] += 1
    save_model(tmp_path / "other", model)
    shutil.copy(tmp_path / "other" / "weights.safetensors", tmp_path / "model")
    seal(tmp_path / "model")
    with pytest.raises(DataError, match=r"weights\.safetensors: belongs to another model"):
        load(tmp_path / "model")


def test_model_json_of_another_model(folder, tmp_path):
    save_model(tmp_path / "other", make_model(make_network(names=("ant", "cow", "bee"))))
    shutil.copy(tmp_path / "other" / "model.json", folder / "model.json")
    seal(folder)
    with pytest.raises(DataError, match=r"weights\.safetensors: belongs to another model"):
        load(folder)


def test_renamed_classes_do_not_fit_the_tensors(folder):
    def change(content):
        content["classes"][0]["name"] = content["network"]["class_names"][0] = "wasp"

    edit_record(folder, change)
    with pytest.raises(DataError, match=r"weights\.safetensors: belongs to another model"):
        load(folder)


@pytest.mark.parametrize("name", ["weights.safetensors", "reference.safetensors", "model.json"])
def test_a_file_that_the_sums_do_not_list(folder, name):
    sums = seal(folder)
    del sums[name]
    (folder / "sha256.json").write_text(json.dumps(sums))
    with pytest.raises(DataError, match=rf"sha256\.json: has no checksum of {name}"):
        load(folder)


def test_a_foreign_file_in_the_sums(folder):
    (folder / "hook.py").write_text("")
    seal(folder)
    with pytest.raises(DataError, match=r"sha256\.json: lists 'hook\.py'"):
        load(folder)


def test_weights_of_half_precision_are_not_saved(tmp_path):
    model = make_model(make_network())
    model.classifier.encoder.half()
    with pytest.raises(UsageError, match="half precision: load it without"):
        save_model(tmp_path / "model", model)


def test_what_cannot_be_loaded_is_not_saved(tmp_path):
    model = make_model(make_network())
    broken = model.reference.prototypes_KTD.clone()
    broken[0, 0, 0] = math.nan
    wrong = {
        "NaN": {"reference": dataclasses.replace(model.reference, prototypes_KTD=broken)},
        "threshold": {"rule": Rule("logit", threshold=math.nan)},
        "gallery": {"gallery": model.gallery[:2]},
        "begin with": {"class_names": ("bee", "ant", "cow")},
        "without a reference": {"reference": None},
        "cannot hold this model .Object of type": {
            "gallery": ((Prototype(0, Path("a.png"), 0.0, 0.0),) * 2, *model.gallery[1:])
        },
        "cannot hold this model .*surrogates": {
            "gallery": ((Prototype(0, "\udcff", 0.0, 0.0),) * 2, *model.gallery[1:])
        },
    }
    for reason, changes in wrong.items():
        with pytest.raises(PmalError, match=reason):
            save_model(tmp_path / "model", dataclasses.replace(model, **changes))
        assert listing(tmp_path) == []


def test_a_model_json_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    model = softmax(Rule("logit", threshold=0.0), calibrated=False)
    save_model(tmp_path / "model", model)
    size = (tmp_path / "model" / "model.json").stat().st_size
    monkeypatch.setattr("pmal.rejection.bundle.saving.JSON_LIMIT", size)
    save_model(tmp_path / "model", model)
    load(tmp_path / "model")
    monkeypatch.setattr("pmal.rejection.bundle.saving.JSON_LIMIT", size - 1)
    with pytest.raises(UsageError, match=r"not saved: model\.json would be larger"):
        save_model(tmp_path / "other", model)
    assert listing(tmp_path) == ["model"]


def test_a_fingerprint_is_of_values_types_shapes_and_names():
    four = torch.zeros(4)
    others = {
        "shape": {"a": four.view(2, 2)},
        "type": {"a": four.view(torch.int32)},
        "name": {"b": four},
        "value": {"a": torch.ones(4)},
        "more": {"a": four, "b": four},
    }
    found = {_fingerprint({"file": named}) for named in others.values()}
    found |= {_fingerprint({"other": {"a": four}}), _fingerprint({"file": {"a": four}})}
    assert len(found) == 7
    two = {"a": four, "b": torch.ones(4)}
    assert _fingerprint({"file": two}) == _fingerprint({"file": dict(reversed(two.items()))})


def test_a_model_is_loaded_where_and_as_it_was_asked_for(original):
    assert load_model(original, torch.device("meta")).classifier.mean.device.type == "meta"
    with pytest.raises(UsageError, match="half precision is slower on a CPU"):
        load_model(original, torch.device("cpu"), half=True)
