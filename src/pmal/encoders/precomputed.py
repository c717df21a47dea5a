"""Embeddings of any other model in place of images: one linear layer maps them to ours."""

from torch import Tensor, nn

from pmal.encoders.adapters import Encoder
from pmal.encoders.registry import register_encoder
from pmal.errors import UsageError

PRECOMPUTED = "precomputed"


class LinearMap(Encoder):
    """A linear map from vectors (B, D, 1, 1), images of one pixel, to embeddings (B, `num_features`)."""

    def __init__(self, in_features: int, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.linear = nn.Linear(in_features, num_features)

    def forward(self, images: Tensor) -> Tensor:
        z_BD: Tensor = self.linear(images.flatten(1))
        return z_BD


@register_encoder(PRECOMPUTED, any_input=True)
def precomputed(in_channels: int, image_size: int | None, width: int = 512) -> LinearMap:
    """Return a linear map to at most `width` features, and never to more than the vectors have numbers."""
    if image_size not in (None, 1):
        raise UsageError(
            f"encoder 'precomputed' takes embeddings, not images of {image_size} px: choose oscri or small, "
            "or pass the embeddings to OpenSetClassifier.fit"
        )
    if width < 1:
        raise UsageError(f"option width of encoder precomputed is {width}: must be 1 or more")
    return LinearMap(in_channels, min(in_channels, width))
