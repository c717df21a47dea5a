"""Another acceptance rate, asked of an exported graph, is that of the model."""

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest

from pmal.errors import UsageError
from pmal.rejection.calibration.thresholds import conformal_threshold, largest_rates
from pmal.rejection.model import Rule
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.onnx_model import OnnxModel
from pmal.serving.onnx.parity import Images
from tests.serving.exports import exported, resealed, some_images
from tests.serving.tiny_model import make_model

pytestmark = pytest.mark.slow

RATES = (0.01, 0.5, 0.8, 0.9, 0.95, 0.97, 0.999)


@pytest.mark.parametrize("samples", [1, 2, 19, 99, 100, 113])
def test_the_rank_of_a_rate_is_that_of_the_threshold(samples):
    known = np.arange(1.0, samples + 1)
    for rate in (*(k / 100 for k in range(1, 100)), 1 / 3, 0.9500000000000001, 0.9499999999999998):
        reached = known[largest_rates(samples) >= rate]
        assert reached.min(initial=math.inf) == conformal_threshold(known, rate).value


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["distance", "combined", "added"])
def test_labels_thresholds_and_p_values_are_those_of_the_model(name, rate):
    model, found = exported(name)
    images = some_images(seed=11)
    expected = replace(model, rule=replace(model.rule, accept=rate)).answer(images)
    got = OnnxModel(found.data, "m.onnx").with_accept(rate).run(images.numpy())
    assert got["label"].tolist() == expected.labels.tolist()
    assert got["threshold"].tolist() == expected.limits.tolist()
    np.testing.assert_allclose(got["p_value"], expected.p_values.numpy(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(got["typicality_threshold"], expected.far_limits.numpy())


@pytest.mark.parametrize("name", ["distance", "combined"])
def test_what_is_no_rate_makes_every_image_unknown(name):
    runtime = OnnxModel(exported(name)[1].data, "m.onnx")
    for rate in (0.0, 1.0, -1.0, 2.0, math.nan, math.inf, -math.inf):
        with pytest.raises(UsageError, match="above 0 and below 1"):
            runtime.with_accept(rate)
        runtime.accept = rate
        assert (runtime.run(some_images().numpy())["label"] == -1).all(), rate


def test_a_threshold_that_was_set_has_no_rate():
    model = make_model(Rule("distance", threshold=0.5))
    found = export_onnx(model, Images(some_images(), "some"))
    runtime = OnnxModel(found.data, "m.onnx")
    assert not runtime.takes_accept
    with pytest.raises(UsageError, match="threshold that was set"):
        runtime.with_accept(0.9)


def test_an_older_file_answers_and_refuses_another_rate():
    proto = onnx.load_from_string(exported("distance")[1].data)
    proto.graph.input.remove(next(value for value in proto.graph.input if value.name == "accept"))
    proto.graph.output.remove(next(v for v in proto.graph.output if v.name == "typicality_threshold"))
    older = OnnxModel(resealed(proto), "m.onnx")
    newer = OnnxModel(exported("distance")[1].data, "m.onnx")
    images = some_images().numpy()
    names = [str(b) for b in range(len(images))]
    assert older.describe(images, names, 1) == newer.describe(images, names, 1)
    with pytest.raises(UsageError, match="older pmal"):
        older.with_accept(0.9)
