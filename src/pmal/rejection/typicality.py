"""The second line of defense: does an image look like the training images at all?

For every observed layer, the Mahalanobis distance of its channel statistics to those of the training images,
whatever their classes. It needs no training and no second pass. Noise, flat or inverted images, and images of
another kind are rejected by it, though they may lie in a known direction of the embedding.

N training images, B images, F statistics of a layer.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmal._runtime.progress import Advance
from pmal._runtime.ranks import ALONE, Ranks
from pmal.data.batches import ChosenImages, ImageBatches
from pmal.data.samples import evenly
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.errors import DataError

TYPICALITY = "typicality"
FITTED_IMAGES = 5000
"""Training images that the statistics are fitted to, evenly spaced where there are more."""
_SMALLEST = 1e-12
"""Share of a layer's mean variance below which a direction counts as constant."""


class Typicality(nn.Module):
    """Where the statistics of the training images lie, layer by layer."""

    def __init__(self, layers: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """layers: by name the mean (F,) and the whitening matrix (F, F), float32."""
        super().__init__()
        self.names = tuple(layers)
        for i, (mean_F, whitening_FF) in enumerate(layers.values()):
            self.register_buffer(f"mean_{i}", mean_F)
            self.register_buffer(f"whitening_{i}", whitening_FF)

    def forward(self, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the typicality score, float64 (B,): the sum over layers of log(1 + distance).

        Larger is less typical. The logarithm keeps one layer from outvoting all others.
        """
        parts = [
            torch.log1p(self._distance(i, statistics[name]).double()) for i, name in enumerate(self.names)
        ]
        total_B = torch.stack(parts).sum(dim=0)
        return total_B.masked_fill(total_B.isnan(), math.inf)

    def layers(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return what it was made of."""
        return {name: self._layer(i) for i, name in enumerate(self.names)}

    def _distance(self, i: int, statistics_BF: Tensor) -> Tensor:
        mean_F, whitening_FF = self._layer(i)
        distance_B: Tensor = torch.linalg.vector_norm((statistics_BF - mean_F) @ whitening_FF, dim=1)
        return distance_B

    def _layer(self, i: int) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"mean_{i}"), self.get_buffer(f"whitening_{i}")


def fit_typicality(
    network: Classifier, images: ImageBatches, advance: Advance | None = None, ranks: Ranks = ALONE
) -> Typicality | None:
    """Return what training images look like to the layers; None where the network has none to look at.

    Embeddings of another network in the place of images have no layers here: those of a large pretrained one
    tell noise and flat images apart by themselves.
    """
    if network.spec.image_size == 1 or not network.observer.names:
        return None
    names = network.observer.names
    if len(images) > FITTED_IMAGES:
        images = ChosenImages(images, torch.from_numpy(evenly(len(images), FITTED_IMAGES)))

    def observe(batch: Tensor) -> tuple[Tensor, ...]:
        _, _, found = network.embed_observed(batch)
        return tuple(found[name] for name in names)

    layers = embed_images(network, images, advance=advance, ranks=ranks, embed=observe)
    fitted = {name: fit_layer(x_NF.numpy()) for name, x_NF in zip(names, layers, strict=True)}
    return Typicality(fitted).to(network.mean.device)


def fit_layer(statistics_NF: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Return the mean and the matrix that whitens differences to it, by Ledoit and Wolf's shrunk covariance.

    The length of a whitened difference is its Mahalanobis distance.
    """
    from sklearn.covariance import ledoit_wolf  # takes long to import

    x_NF = statistics_NF.astype(np.float64)
    if not np.isfinite(x_NF).all():
        raise DataError("the layers' statistics of training images are not finite: lower the learning rate")
    covariance_FF = ledoit_wolf(x_NF)[0] if len(x_NF) > 1 else np.zeros((x_NF.shape[1],) * 2)
    values_F, vectors_FF = np.linalg.eigh(covariance_FF)
    # Constant statistics, as of a single image, would divide by zero: any change of them counts as large.
    floor = max(_SMALLEST * values_F.mean(), np.finfo(np.float32).tiny ** 0.5)
    whitening_FF = vectors_FF / np.sqrt(values_F.clip(min=floor))
    return torch.from_numpy(x_NF.mean(axis=0)).float(), torch.from_numpy(whitening_FF).float()


def embed_with_typicality(
    network: Classifier, typicality: Typicality | None, images_BCHW: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return embeddings, logits and typicality scores of images, in one pass."""
    if typicality is None:
        z_BD, logits_BK = network.embed(images_BCHW)
        return z_BD, logits_BK, always_typical(z_BD)
    z_BD, logits_BK, statistics = network.embed_observed(images_BCHW)
    return z_BD, logits_BK, typicality(statistics)


def always_typical(like_BD: Tensor) -> Tensor:
    """Return the scores of images of which nothing but the embedding is known: minus infinity, (B,)."""
    return torch.full_like(like_BD[:, 0], -math.inf, dtype=torch.float64)
