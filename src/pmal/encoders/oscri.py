"""OSCRI: the plain network of Neal et al. (ECCV 2018), the common small backbone of open-set recognition."""

from torch import nn

from pmal.config import Share
from pmal.encoders.adapters import FeatureAdapter
from pmal.encoders.registry import register_encoder

WIDTHS = (64, 64, 128, 128, 128, 128, 128, 128, 128)
"""Output channels of the nine convolutions, in three groups of three; the last of a group has stride 2."""


@register_encoder("oscri")
def oscri(in_channels: int, image_size: int | None, dropout: Share = 0.0) -> FeatureAdapter:
    """Return nine 3x3 convolutions: 128 features, 999,104 parameters at three channels; any image size.

    Args:
        in_channels: channels of an image.
        image_size: not used.
        dropout: share of the channels dropped before each group of three convolutions; 0.2 in the paper's
            network.
    """
    layers: list[nn.Module] = []
    channels = in_channels
    for i, width in enumerate(WIDTHS):
        # Also at rate 0: weights are named by the positions of their layers. Dropout2d drops whole channels:
        # gray input would become blank images.
        if i % 3 == 0 and channels > 1:
            layers.append(nn.Dropout2d(dropout))
        stride = 2 if i % 3 == 2 else 1
        layers.append(nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(width), nn.LeakyReLU(0.2, inplace=True)]
        channels = width
    body = nn.Sequential(*layers)
    body.apply(_initialize)
    return FeatureAdapter(body, num_features=WIDTHS[-1])


def _initialize(module: nn.Module) -> None:
    """Initialize as in the public code of ARPL, whose splits and figures use this backbone."""
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, 0.0, 0.05)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
