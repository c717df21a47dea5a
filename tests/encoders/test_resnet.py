import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pmal.encoders import create_encoder
from pmal.encoders.resnet import ResidualBlock
from pmal.errors import UsageError

SAVED_BY_SMALL_STEM = 3 * 64 * (7 * 7 - 3 * 3)


def count(encoder: nn.Module) -> int:
    return sum(p.numel() for p in encoder.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_176_512), ("resnet50", 23_508_032)])
def test_the_bodies_have_the_published_parameter_counts(name: str, parameters: int):
    assert count(create_encoder(name, stem="imagenet")) == parameters
    assert count(create_encoder(name, stem="small")) == parameters - SAVED_BY_SMALL_STEM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image_size", "edge_of_64_px"), [(None, 2), (8, 8), (32, 8), (64, 8), (65, 2), (224, 2)]
)
def test_auto_takes_the_small_stem_up_to_64_px(image_size: int | None, edge_of_64_px: int):
    encoder = create_encoder("resnet18", image_size=image_size).eval()
    with torch.no_grad():
        assert encoder.body(torch.randn(1, 3, 64, 64)).shape == (1, 512, edge_of_64_px, edge_of_64_px)


def test_a_named_stem_overrides_the_image_size():
    assert count(create_encoder("resnet18", image_size=32, stem="imagenet")) == 11_176_512
    assert count(create_encoder("resnet18", image_size=224, stem="small")) < 11_176_512


def test_an_unknown_stem_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"unknown stem 'smal': did you mean 'small'\?"):
        create_encoder("resnet50", stem="smal")


@pytest.mark.parametrize(
    ("channels", "width", "stride", "bottleneck"),
    [(6, 6, 1, False), (6, 8, 2, False), (24, 6, 1, True), (12, 6, 2, True)],
)
def test_a_block_equals_its_transcription(channels: int, width: int, stride: int, bottleneck: bool):
    block = ResidualBlock(channels, width, stride, bottleneck).double()
    kernels = [p for p in block.branch.parameters() if p.ndim == 4]
    strides = (1, stride, 1) if bottleneck else (stride, 1)
    x = torch.randn(4, channels, 7, 7, dtype=torch.float64)

    def conv_norm(inputs: Tensor, kernel: Tensor, step: int) -> Tensor:
        return functional.batch_norm(
            functional.conv2d(inputs, kernel, stride=step, padding=kernel.shape[-1] // 2),
            None,
            None,
            training=True,
        )

    branch = x
    for i, (kernel, step) in enumerate(zip(kernels, strides, strict=True)):
        branch = conv_norm(branch.relu() if i else branch, kernel, step)
    projection = next(block.shortcut.parameters(), None)
    shortcut = x if projection is None else conv_norm(x, projection, stride)
    assert (projection is None) == (x.shape == branch.shape)
    torch.testing.assert_close(block(x), (branch + shortcut).relu())


def test_convolutions_start_with_the_deviation_of_he():
    torch.manual_seed(0)
    for convolution in create_encoder("resnet18").modules():
        if isinstance(convolution, nn.Conv2d) and convolution.weight.numel() > 10_000:
            fan_out = convolution.out_channels * convolution.kernel_size[0] ** 2
            assert convolution.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
