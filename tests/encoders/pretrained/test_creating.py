"""Networks by name, and from descriptions that anybody may have written."""

import copy

import pytest
import torch

from pmal.encoders.pretrained.creating import create_backbone, rebuild_backbone
from pmal.errors import DataError, UsageError
from tests.encoders.pretrained.tiny_models import save_tiny


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny("vit", folder)
    return create_backbone(f"hf/{folder}").description()


def changed(description, path, value):
    found = copy.deepcopy(description)
    *places, last = path
    inner = found
    for place in places:
        inner = inner[place]
    inner[last] = value
    return found


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean 'efficientnet_lite[01]'\?.*hf/<model>"):
        create_backbone("efficientnet_lite")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["architecture", "kind"], "pickle", "kind 'pickle' is not built: valid are efficientnet_lite, tra"),
        (["architecture", "kind"], "timm", "is not of kind timm"),
        (["architecture", "kind"], "efficientnet_lite", "is not of kind efficientnet_lite"),
        (["architecture", "model_type"], "llama", "models of type 'llama' are not built: valid are dinov2"),
        (["architecture", "model_type"], ["vit"], "are not built"),
        (["architecture", "config"], {}, "does not have the fields of a vit"),
        (["architecture", "config", "auto_map"], {"AutoModel": "x"}, "does not have the fields"),
        (["architecture", "config", "hidden_size"], 2**40, "expected a whole number"),
        (["architecture", "config", "hidden_size"], True, "expected a whole number"),
        (["architecture", "config", "layer_norm_eps"], float("nan"), "expected a number from 0 to 1"),
        (["architecture", "crop"], 33, "33 px cannot be cropped"),
        (["architecture", "more"], 1, "does not fit the network"),
        (["image_size"], 10**6, "side of images is 1000000"),
        (["image_size"], "32", "side of images is 32"),
        (["num_features"], 33, "does not fit the network"),
        (["mean"], [0.1, 0.2], "expected three numbers"),
        (["std"], [0, 1, 1], "expected three numbers"),
        (["name"], "oscri", "'oscri' is no name of one"),
        (["extra"], 1, "expected the fields name"),
    ],
)
def test_absurd_descriptions_are_refused_in_one_line(description, path, value, message):
    rebuild_backbone(description)
    with pytest.raises(DataError, match=message) as caught:
        rebuild_backbone(changed(description, path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_network_of_too_many_weights_is_refused_before_memory_is_taken(description):
    config = {**description["architecture"]["config"], "hidden_size": 16384, "num_hidden_layers": 256}
    huge = changed(description, ["architecture", "config"], {**config, "intermediate_size": 16384})
    with pytest.raises(DataError, match="more than 3,000,000,000 weights"):
        rebuild_backbone(huge)


def test_our_own_network_is_rebuilt_by_its_name_alone():
    own = {
        "name": "efficientnet_lite0",
        "image_size": 224,
        "num_features": 1280,
        "mean": [127 / 255] * 3,
        "std": [128 / 255] * 3,
        "resize": "bicubic",
        "architecture": {"kind": "efficientnet_lite", "depth": 1.0},
    }
    backbone = rebuild_backbone(own)
    assert backbone.description() == own
    assert backbone.image_shape == (224, 3, "bicubic")
    assert backbone(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape == (1, 1280)
    with pytest.raises(DataError, match="does not fit"):
        rebuild_backbone(changed(own, ["architecture", "depth"], 2.0))
    with pytest.raises(DataError, match="resized by 'nearest', which is not done here"):
        rebuild_backbone(own | {"resize": "nearest"})
