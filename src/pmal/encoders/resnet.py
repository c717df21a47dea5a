"""ResNet-18 and ResNet-50 (He et al., CVPR 2016), with the ImageNet stem or one for small images.

As in torchvision, a bottleneck has its stride in the 3x3 convolution.
"""

from torch import Tensor, nn

from pmal.encoders.adapters import FeatureAdapter
from pmal.encoders.registry import register_encoder
from pmal.errors import unknown_name

LARGEST_SMALL_IMAGE = 64
"""Images up to this size get the small stem: ImageNet's divides the resolution by 4."""


@register_encoder("resnet18")
def resnet18(in_channels: int, image_size: int | None, stem: str = "auto") -> FeatureAdapter:
    """Return a ResNet-18: 512 features; 11,176,512 parameters with the ImageNet stem.

    Args:
        in_channels: channels of an image.
        image_size: side of an image; decides the stem `auto`.
        stem: imagenet, small, or auto: small for images up to 64 px.
    """
    return _resnet(in_channels, image_size, stem, blocks=(2, 2, 2, 2), bottleneck=False)


@register_encoder("resnet50")
def resnet50(in_channels: int, image_size: int | None, stem: str = "auto") -> FeatureAdapter:
    """Return a ResNet-50: 2048 features; 23,508,032 parameters with the ImageNet stem.

    Args:
        in_channels: channels of an image.
        image_size: side of an image; decides the stem `auto`.
        stem: imagenet, small, or auto: small for images up to 64 px.
    """
    return _resnet(in_channels, image_size, stem, blocks=(3, 4, 6, 3), bottleneck=True)


def he_initialize(module: nn.Module) -> None:
    """Initialize convolutions to keep the variance of gradients through ReLUs (He et al., ICCV 2015)."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResidualBlock(nn.Module):
    """relu(branch(x) + shortcut(x)); the shortcut is a projection if the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out_channels = 4 * width if bottleneck else width
        if bottleneck:
            hidden = [*_conv_norm_relu(channels, width, 1), *_conv_norm_relu(width, width, 3, stride)]
            last = _conv_norm(width, out_channels, 1)
        else:
            hidden = _conv_norm_relu(channels, width, 3, stride)
            last = _conv_norm(width, width, 3)
        self.branch = nn.Sequential(*hidden, *last)
        same_shape = stride == 1 and channels == out_channels
        self.shortcut = nn.Sequential(*([] if same_shape else _conv_norm(channels, out_channels, 1, stride)))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        rectified: Tensor = self.relu(self.branch(x) + self.shortcut(x))
        return rectified


def _resnet(
    in_channels: int, image_size: int | None, stem: str, blocks: tuple[int, ...], bottleneck: bool
) -> FeatureAdapter:
    layers = _stem(in_channels, image_size, stem)
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
    body = nn.Sequential(*layers)
    body.apply(he_initialize)
    return FeatureAdapter(body, num_features=channels)


def _stem(in_channels: int, image_size: int | None, stem: str) -> list[nn.Module]:
    if stem not in ("auto", "imagenet", "small"):
        raise unknown_name("stem", stem, ("auto", "imagenet", "small"))
    fits_small = image_size is not None and image_size <= LARGEST_SMALL_IMAGE
    if stem == "small" or (stem == "auto" and fits_small):
        return _conv_norm_relu(in_channels, 64, 3)
    return [*_conv_norm_relu(in_channels, 64, 7, 2), nn.MaxPool2d(3, stride=2, padding=1)]


def _conv_norm_relu(channels: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [*_conv_norm(channels, width, kernel, stride), nn.ReLU(inplace=True)]


def _conv_norm(channels: int, width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(width)]
