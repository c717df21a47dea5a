"""Pretrained models of timm and torchvision, which small stand-ins play here."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pmal.config import EncoderConfig
from pmal.encoders.pretrained import names as names_module
from pmal.encoders.pretrained.creating import create_backbone, rebuild_backbone
from pmal.encoders.pretrained.names import is_frozen
from pmal.errors import DataError, UsageError


class Network(nn.Module):
    def __init__(self, trained):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 5, 3), nn.Linear(5, 10)
        nn.init.constant_(self.conv.weight, 0.5 if trained else 0.0)

    def forward(self, x):
        return self.fc(self.conv(x).mean(dim=(2, 3)))


def unreachable():
    raise OSError("no route to host\nmore")


@pytest.fixture
def libraries(monkeypatch):
    """Both in the place of the real ones; `offline` holds those whose weights cannot be fetched."""
    offline = set()

    def timm_model(name, pretrained, num_classes, in_chans):
        if pretrained and "timm" in offline:
            unreachable()
        network = Network(pretrained)
        network.fc = nn.Identity()
        return network

    def vision_model(name, weights):
        if weights and "torchvision" in offline:
            unreachable()
        return Network(weights is not None)

    timm, data, vision = ModuleType("timm"), ModuleType("timm.data"), ModuleType("torchvision")
    timm.create_model, timm.data = timm_model, data
    seen = {"input_size": (3, 14, 14), "crop_pct": 0.875, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2)}
    seen |= {"interpolation": "bicubic", "crop_mode": "squash"}
    data.resolve_model_data_config = lambda network: seen
    transforms = SimpleNamespace(resize_size=[16], crop_size=[14], mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.2])
    transforms.interpolation = SimpleNamespace(value="bilinear")
    default = SimpleNamespace(transforms=lambda: transforms)
    vision.models = SimpleNamespace(
        get_model=vision_model, get_model_weights=lambda name: SimpleNamespace(DEFAULT=default)
    )
    for name, module in (("timm", timm), ("timm.data", data), ("torchvision", vision)):
        monkeypatch.setitem(sys.modules, name, module)
    return offline


@pytest.mark.parametrize(
    ("name", "resize"), [("timm/net.tag_1k", "bicubic, whole"), ("torchvision/net", "bilinear")]
)
def test_features_and_the_way_back_from_a_description(name, resize, libraries):
    backbone = create_backbone(name)
    assert backbone.image_shape == (16, 3, resize)
    assert (backbone.image_size, backbone.body.crop, backbone.num_features) == (16, 14, 5)
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    x = (pixels / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / 0.2
    expected = backbone.body.network.conv(x[:, :, 1:15, 1:15]).mean(dim=(2, 3))
    torch.testing.assert_close(backbone(pixels), expected)
    assert backbone.body.network.conv.weight.unique().tolist() == [0.5]
    libraries.add(name.partition("/")[0])  # from here on without a network
    again = rebuild_backbone(backbone.description())
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(pixels), backbone(pixels))


@pytest.mark.parametrize("name", ["timm/net", "torchvision/net"])
def test_weights_that_cannot_be_fetched_may_come_from_a_file(name, libraries, tmp_path):
    libraries.add(name.partition("/")[0])
    with pytest.raises(
        UsageError, match=r"cannot build 'net' \(no route to host\): .* --weights FILE"
    ) as caught:
        create_backbone(name)
    assert "\n" not in str(caught.value)
    save_file(Network(True).state_dict(), tmp_path / "w.safetensors")  # with the classifier
    backbone = create_backbone(name, weights=str(tmp_path / "w.safetensors"))
    assert backbone.body.network.conv.weight.unique().tolist() == [0.5]


def test_names_that_lead_to_a_hub_are_refused(libraries):
    with pytest.raises(UsageError, match="pass one without ':'"):
        create_backbone("timm/hf-hub:somebody/model")
    description = create_backbone("timm/net").description()
    description["name"] = "timm/hf-hub:x"
    with pytest.raises(DataError, match="is not the one of its name"):
        rebuild_backbone(description)
    description["architecture"]["model"] = "hf-hub:x"
    with pytest.raises(DataError, match="pass one without ':'"):
        rebuild_backbone(description)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_package_is_told(library, monkeypatch):
    monkeypatch.setattr(names_module, "_is_installed", lambda package: False)
    with pytest.raises(UsageError, match=f"needs the package {library}, which .*: pip install {library}"):
        create_backbone(f"{library}/net")


def test_only_those_asked_for_as_pretrained_are_frozen():
    assert is_frozen(EncoderConfig("timm/net", options={"pretrained": True}))
    assert not is_frozen(EncoderConfig("timm/net", options={"pretrained": False}))
    assert not is_frozen(EncoderConfig("torchvision/net"))
