"""Files of every version so far are loaded, and answer as they did when they were written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pmal.encoders import registry
from pmal.rejection.bundle.saving import load_model
from pmal.serving.onnx.onnx_model import OnnxModel
from tests.support.golden_encoder import NAME
from tests.support.golden_encoder import golden as small_network

VERSIONS = sorted(path for path in Path(__file__).with_name("golden").iterdir() if path.is_dir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def golden(request, monkeypatch):
    """The folder of a version, images, and what was answered."""
    monkeypatch.setitem(registry.ENCODERS._things, NAME, (small_network, __name__))
    found = json.loads((request.param / "answers.json").read_text())
    images = torch.tensor(found["images"], dtype=torch.uint8).view(-1, *found["shape"])
    return request.param, images, found


def assert_same(found, expected):
    assert found["label"].tolist() == expected["labels"]
    for name, key in (("score", "scores"), ("p_value", "p_values")):
        np.testing.assert_allclose(found[name], np.array(expected[key]), rtol=1e-5, atol=1e-5)


def test_a_bundle_answers_as_it_did(golden):
    folder, images, expected = golden
    answers = load_model(folder / "model", torch.device("cpu")).answer(images)
    found = {"label": answers.labels, "score": answers.score, "p_value": answers.p_values}
    assert_same({name: values.numpy() for name, values in found.items()}, expected)


def test_an_exported_file_answers_as_it_did(golden):
    folder, images, expected = golden
    assert_same(OnnxModel.load(folder / "model.onnx").run(images.numpy()), expected)
