"""The contract: uint8 images in, features out, and a digest that knows every weight."""

import pytest
import torch
from torch import nn

from pmal.encoders.pretrained.backbone import Backbone, Cropped, backbone_digest
from pmal.encoders.pretrained.preprocessing import Preprocessing
from pmal.errors import UsageError


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.layer = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layer:
            x = layer(x)
        return self.norm(x).mean(dim=(2, 3)).double()


def make(mean=(0.5, 0.4, 0.3)):
    torch.manual_seed(0)
    images = Preprocessing(8, 8, mean, (0.2, 0.25, 0.5))
    return Backbone("some", Body(), images, num_features=4, architecture={"kind": "test"})


def test_pixels_are_normalized_and_features_are_float32():
    backbone = make()
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    expected = [[(v / 255 - m) / s for v in c.flatten().tolist()]
                for c, m, s in zip(pixels[0], (0.5, 0.4, 0.3), (0.2, 0.25, 0.5), strict=True)]  # fmt: skip
    by_hand = backbone.body(torch.tensor(expected).view(1, 3, 8, 8)).float()
    found = backbone(pixels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:1], by_hand)


def test_it_is_frozen_and_stays_in_evaluation_mode():
    backbone = make()
    nn.Sequential(backbone).train()
    assert not any(module.training for module in backbone.modules())
    assert not any(weight.requires_grad for weight in backbone.parameters())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 8, 8), "takes uint8 images, not float32"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), r"takes color images \(B, 3, 8, 8\), not 1 x 1 x 8 x 8"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "takes color images"),
        (torch.zeros(1, 3, 8, 9, dtype=torch.uint8), "takes images of 8 x 8 px, not 8 x 9: resize"),
    ],
)
def test_other_images_are_refused_with_the_fix(images, message):
    with pytest.raises(UsageError, match=message):
        make()(images)


def test_the_digest_changes_with_one_weight_and_with_the_description():
    backbone = make()
    before = backbone_digest(backbone)
    assert before == backbone_digest(make())
    assert before != backbone_digest(make(mean=(0.5, 0.4, 0.31)))
    with torch.no_grad():
        backbone.body.norm.running_mean[2] += 1e-3
    assert before != backbone_digest(backbone)


def test_stages_go_from_input_to_output_block_by_block():
    backbone = make()
    names = {id(weight): name for name, weight in backbone.body.named_parameters()}
    stages = [[names[id(weight)] for weight in stage] for stage in backbone.stages()]
    assert stages == [
        ["stem.weight", "stem.bias"],
        ["layer.0.weight", "layer.0.bias"],
        ["layer.1.weight", "layer.1.bias"],
        ["norm.weight", "norm.bias"],
    ]


def test_a_description_is_a_copy():
    backbone = make()
    backbone.description()["architecture"]["kind"] = "other"
    assert backbone.description()["architecture"] == {"kind": "test"}


def test_the_middle_of_an_image_is_cropped():
    x = torch.arange(49.0).view(1, 1, 7, 7)
    assert Cropped(nn.Identity(), 3, lambda y: y.flatten(1))(x).tolist() == [
        [16, 17, 18, 23, 24, 25, 30, 31, 32]
    ]
