"""A four-layer encoder that a CPU trains on 28-px images in seconds, used for the embedded sample."""

from torch import nn

from pmal.encoders.adapters import FeatureAdapter
from pmal.encoders.registry import register_encoder
from pmal.encoders.resnet import he_initialize

LAYERS = ((32, 2), (64, 2), (96, 1), (128, 1))
"""Output channels and stride. Strides come first: full resolution is slow, and digits do not need it."""


@register_encoder("small")
def small(in_channels: int, image_size: int | None) -> FeatureAdapter:
    """Return four 3x3 convolutions with batch norm and ReLU: 128 features, any image size."""
    layers: list[nn.Module] = []
    channels = in_channels
    for width, stride in LAYERS:
        layers.append(nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    body = nn.Sequential(*layers)
    body.apply(he_initialize)
    return FeatureAdapter(body, num_features=channels)
