"""EfficientNet-Lite: the network of Tan and Le (ICML 2019) without squeeze-excite, and with ReLU6 throughout.

The published weights were trained in TensorFlow. Its convolutions of stride 2 put the odd pixel of padding
at the right and at the bottom; equal padding on both sides shifts the maps and costs accuracy.
"""

import math

from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-3
STEM_CHANNELS, HEAD_CHANNELS = 32, 1280

STAGES = (
    # repeats, kernel, stride, expansion, output channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Stages of Lite0. Larger variants repeat the blocks of the inner stages; stem and head stay the same."""


VARIANTS = {"efficientnet_lite0": (1.0, 224), "efficientnet_lite1": (1.1, 240)}
"""The factor on the depth, and the side of the images."""
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
"""Mean and deviation of every channel, on the scale 0..1: the weights were trained on (pixel - 127) / 128."""
RESIZE = "bicubic"
"""The weights were trained with TensorFlow's bilinear filter, which is not antialiased and leaves images
sharper than Pillow's. Bicubic is nearer to it; timm resizes for these weights in the same way."""


class EfficientNetLite(nn.Module):
    """A network from normalized images (B, 3, H, W) to features (B, 1280)."""

    num_features = HEAD_CHANNELS

    def __init__(self, depth: float) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3, stride=2)
        self.blocks = nn.Sequential(*_blocks(depth))
        self.head = ConvNorm(STAGES[-1][-1], HEAD_CHANNELS, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        maps_BDHW: Tensor = self.head(self.blocks(self.stem(x_BCHW)))
        return maps_BDHW.mean(dim=(2, 3))


class InvertedBottleneck(nn.Module):
    """Expand by 1x1, filter each channel separately, project by 1x1 without activation; add the input."""

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        # Layer names are weight names; the first stage expands nothing.
        self.expand = ConvNorm(channels, hidden, 1) if expansion > 1 else nn.Identity()
        self.filter = ConvNorm(hidden, hidden, kernel, stride=stride, groups=hidden)
        self.project = ConvNorm(hidden, out_channels, 1, activation=False)
        self.residual = stride == 1 and channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.filter(self.expand(x)))
        return x + y if self.residual else y


class ConvNorm(nn.Module):
    """A convolution padded as in TensorFlow, batch norm, and by default ReLU6."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        # At stride 1 the padding is equal on both sides, and the convolution does it without a copy.
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(
            channels, out_channels, kernel, stride=stride, padding=padding, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(out_channels, eps=NORM_EPSILON)
        self.kernel, self.stride, self.activation = kernel, stride, activation

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            height, width = (same_padding(side, self.kernel, self.stride) for side in x.shape[2:])
            x = functional.pad(x, (*width, *height))
        y: Tensor = self.norm(self.conv(x))
        return functional.relu6(y) if self.activation else y


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the padding before and after a side, for an output of size / stride pixels, rounded up.

    >>> same_padding(224, 3, 2), same_padding(56, 5, 2), same_padding(15, 5, 2)
    ((0, 1), (1, 2), (2, 2))
    """
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _blocks(depth: float) -> list[InvertedBottleneck]:
    blocks, channels = [], STEM_CHANNELS
    for i, (repeats, kernel, stride, expansion, out_channels) in enumerate(STAGES):
        scaled = repeats if i in (0, len(STAGES) - 1) else math.ceil(repeats * depth)
        for block in range(scaled):
            step = stride if block == 0 else 1
            blocks.append(InvertedBottleneck(channels, out_channels, kernel, step, expansion))
            channels = out_channels
    return blocks


_PUBLISHED_NAMES = (
    ("_conv_stem.", "stem.conv."),
    ("_bn0.", "stem.norm."),
    ("_conv_head.", "head.conv."),
    ("_bn1.", "head.norm."),
)
_PUBLISHED_BLOCK_NAMES = (
    ("_expand_conv.", "expand.conv."),
    ("_bn0.", "expand.norm."),
    ("_depthwise_conv.", "filter.conv."),
    ("_bn1.", "filter.norm."),
    ("_project_conv.", "project.conv."),
    ("_bn2.", "project.norm."),
)
_PUBLISHED_CLASSIFIER = "_fc."


def from_published(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a published file, renamed for `EfficientNetLite`, without the classifier.

    Names that are not those of a published file are kept.

    >>> list(from_published({"_blocks.3._bn2.weight": Tensor(), "_fc.bias": Tensor(), "_bn1.bias": Tensor()}))
    ['blocks.3.project.norm.weight', 'head.norm.bias']
    """
    return {_own_name(k): v for k, v in tensors.items() if not k.startswith(_PUBLISHED_CLASSIFIER)}


def _own_name(name: str) -> str:
    if not name.startswith("_blocks."):
        return _replaced(name, _PUBLISHED_NAMES)
    _, block, rest = name.split(".", 2)
    return f"blocks.{block}.{_replaced(rest, _PUBLISHED_BLOCK_NAMES)}"


def _replaced(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for published, own in pairs:
        if name.startswith(published):
            return own + name.removeprefix(published)
    return name
