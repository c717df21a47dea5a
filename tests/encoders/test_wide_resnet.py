import pytest
import torch
from torch import nn
from torch.nn import functional

from pmal.encoders import create_encoder
from pmal.encoders.wide_resnet import PreActivationBlock
from pmal.errors import UsageError


def test_the_body_of_40_4_has_8946640_parameters():
    assert sum(p.numel() for p in create_encoder("wide_resnet").parameters()) == 8_946_640


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 2), (28, 1)])
def test_depth_counts_convolutions_and_width_multiplies_channels(depth: int, width: int):
    encoder = create_encoder("wide_resnet", depth=depth, width=width)
    spatial = [m for m in encoder.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    # The published depth includes the final linear layer and the three projections.
    assert len(spatial) == depth - 3
    assert encoder.num_features == 64 * width


def test_32_px_become_an_8_by_8_map():
    encoder = create_encoder("wide_resnet", depth=10, width=1).eval()
    with torch.no_grad():
        assert encoder.body(torch.randn(1, 3, 32, 32)).shape == (1, 64, 8, 8)


@pytest.mark.parametrize(("channels", "width", "stride"), [(6, 6, 1), (6, 8, 1), (6, 12, 2)])
def test_a_block_equals_its_transcription(channels: int, width: int, stride: int):
    block = PreActivationBlock(channels, width, stride, dropout=0.0).double()
    first, second = (p for p in block.branch.parameters() if p.ndim == 4)
    x = torch.randn(4, channels, 7, 7, dtype=torch.float64)
    activated = functional.batch_norm(x, None, None, training=True).relu()
    hidden = functional.batch_norm(
        functional.conv2d(activated, first, stride=stride, padding=1), None, None, training=True
    )
    branch = functional.conv2d(hidden.relu(), second, padding=1)
    shortcut = x
    if channels != width:
        shortcut = functional.conv2d(activated, block.projection.weight, stride=stride)
    torch.testing.assert_close(block(x), branch + shortcut)


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 41},
        {"depth": 4},
        {"depth": "40"},
        {"width": 0},
        {"width": 1.5},
        {"dropout": 1},
        {"dropout": -0.1},
    ],
)
def test_impossible_options_are_named(options: dict[str, float]):
    ((option, value),) = options.items()
    with pytest.raises(UsageError, match=rf"options.{option} = {value!r}: (must be|expected)"):
        create_encoder("wide_resnet", **options)
