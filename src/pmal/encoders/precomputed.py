"""Rows of numbers in place of images: one linear layer for embeddings of other models, several for tables."""

from torch import Tensor, nn

from pmal.config import Count, Share
from pmal.encoders.adapters import Encoder
from pmal.encoders.registry import register_encoder
from pmal.errors import UsageError

PRECOMPUTED = "precomputed"
OF_ROWS = (PRECOMPUTED, "mlp")
"""Encoders that take rows of numbers, and no images."""


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
def precomputed(in_channels: int, image_size: int | None, width: Count = 512) -> LinearMap:
    """Return a linear map to at most `width` features, and never to more than the vectors have numbers."""
    _check_rows(PRECOMPUTED, image_size)
    return LinearMap(in_channels, min(in_channels, width))


class Perceptron(Encoder):
    """Layers with ReLU, then a linear one: from rows (B, D, 1, 1) to embeddings (B, `num_features`)."""

    def __init__(self, in_features: int, hidden: int, layers: int, num_features: int, dropout: float) -> None:
        super().__init__()
        self.num_features = num_features
        blocks: list[nn.Module] = []
        for width in (in_features, *(hidden,) * (layers - 1)):
            blocks += [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*blocks, nn.Linear(hidden, num_features))

    def forward(self, images: Tensor) -> Tensor:
        z_BD: Tensor = self.layers(images.flatten(1))
        return z_BD


@register_encoder("mlp", any_input=True)
def mlp(
    in_channels: int,
    image_size: int | None,
    width: Count = 64,
    hidden: Count = 256,
    layers: Count = 2,
    dropout: Share = 0.0,
) -> Perceptron:
    """Return a multilayer perceptron for the rows of a table, whose columns are measurements.

    Each of `layers` has `hidden` units, layer norm and ReLU; a linear layer to `width` features follows.
    """
    _check_rows("mlp", image_size)
    return Perceptron(in_channels, hidden, layers, width, dropout)


def _check_rows(name: str, image_size: int | None) -> None:
    if image_size not in (None, 1):
        raise UsageError(
            f"encoder '{name}' takes embeddings, not images of {image_size} px: choose oscri or small, "
            "or pass the embeddings to OpenSetClassifier.fit"
        )
