"""An exported graph rejects what is unlike all training images as PyTorch does."""

import numpy as np
import pytest
import torch

from pmal.rejection.model import Rule
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.onnx_model import OnnxModel
from pmal.serving.onnx.parity import Images
from tests.rejection.typicality.blobs import smooth_images
from tests.rejection.typicality.model_of_blobs import NOISE, make_model

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("held_out", [12, 400])
@pytest.mark.parametrize("per_class", [False, True])
def test_decisions_typicality_and_p_values_are_those_of_pytorch(held_out, per_class):
    model = make_model(held_out, Rule("logit", 0.9, per_class))
    known = smooth_images(100, seed=7)
    images = torch.cat(
        [known, NOISE, 255 - known, torch.zeros_like(known[:1]), torch.full_like(known[:1], 255)]
    )
    exported = export_onnx(model, Images(images, "far and near ones"))
    found, expected = OnnxModel(exported.data, "far").run(images.numpy()), model.answer(images)
    assert (found["label"] == expected.labels.numpy()).mean() > 0.99
    assert (found["label"][100:150] == -1).all()
    np.testing.assert_allclose(found["typicality"], expected.far.numpy(), rtol=1e-4)
    assert np.isclose(found["p_value"], expected.p_values.numpy(), atol=1e-9).mean() > 0.97
    assert exported.header.far_threshold == model.far_limit()
