"""Rows of numbers in place of images: one linear layer for embeddings of other models, several for tables."""

from torch import Tensor, nn

from pmal.encoders.adapters import Encoder
from pmal.encoders.registry import check_dropout, register_encoder
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
def precomputed(in_channels: int, image_size: int | None, width: int = 512) -> LinearMap:
    """Return a linear map to at most `width` features, and never to more than the vectors have numbers."""
    _check_rows(PRECOMPUTED, image_size, width=width)
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
    width: int = 64,
    hidden: int = 256,
    layers: int = 2,
    dropout: float = 0.0,
) -> Perceptron:
    """Return a multilayer perceptron for the rows of a table, whose columns are measurements.

    Each of `layers` has `hidden` units, layer norm and ReLU; a linear layer to `width` features follows.
    """
    _check_rows("mlp", image_size, width=width, hidden=hidden, layers=layers)
    check_dropout("mlp", dropout)
    return Perceptron(in_channels, hidden, layers, width, dropout)


def _check_rows(name: str, image_size: int | None, **counts: int) -> None:
    if image_size not in (None, 1):
        raise UsageError(
            f"encoder '{name}' takes embeddings, not images of {image_size} px: choose oscri or small, "
            "or pass the embeddings to OpenSetClassifier.fit"
        )
    for option, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"option {option} of encoder {name} is {count}: must be 1 or more")
