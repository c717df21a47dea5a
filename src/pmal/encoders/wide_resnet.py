"""Wide ResNet (Zagoruyko and Komodakis, BMVC 2016) for small images: three stages, pre-activation blocks."""

from typing import Annotated

from torch import Tensor, nn

from pmal.config import Allowed, Count, Share
from pmal.encoders.adapters import FeatureAdapter
from pmal.encoders.registry import register_encoder
from pmal.encoders.resnet import he_initialize

Depth = Annotated[int, Allowed(lambda n: n >= 10 and n % 6 == 4, "6 n + 4, as in 10, 16, 28 or 40")]


@register_encoder("wide_resnet")
def wide_resnet(
    in_channels: int, image_size: int | None, depth: Depth = 40, width: Count = 4, dropout: Share = 0.0
) -> FeatureAdapter:
    """Return a wide ResNet: 64 x width features; WRN-40-4 has 256 and 8,946,640 parameters at three channels.

    Args:
        in_channels: channels of an image.
        image_size: not used.
        depth: number of layers, 6 n + 4.
        width: factor on the number of channels.
        dropout: share of the activations dropped inside each block.
    """
    layers: list[nn.Module] = [nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)]
    channels = 16
    for stage in range(3):
        out_channels = 16 * width * 2**stage
        for block in range((depth - 4) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(PreActivationBlock(channels, out_channels, stride, dropout))
            channels = out_channels
    body = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
    body.apply(he_initialize)
    return FeatureAdapter(body, num_features=channels)


class PreActivationBlock(nn.Module):
    """x + branch(act(x)); if the shape changes, the shortcut is a projection of act(x) instead of x."""

    def __init__(self, channels: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )
        same_shape = stride == 1 and channels == width
        self.projection = None if same_shape else nn.Conv2d(channels, width, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation(x)
        shortcut = x if self.projection is None else self.projection(activated)
        summed: Tensor = shortcut + self.branch(activated)
        return summed
