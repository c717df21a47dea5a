"""The second line of defense: does an image look like the training images at all?

The Mahalanobis distance of the channel statistics of all observed layers to those of the training images,
whatever their classes, in the directions of each layer in which training images differ most. Of a deviation
the logarithm counts, so that a flat image is as unusual as a noisy one. It needs no training and no second
pass. Noise, flat or inverted images, and images of another kind are told apart by it, though they may lie in
a known direction of the embedding.

N training images, B images, C channels, F = 2 C statistics of a layer, R of its directions, M directions of
all layers.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.progress import Advance
from pmal.data.feeding.batches import ChosenImages, ImageBatches
from pmal.data.samples import evenly
from pmal.ensemble.classifier import FEATURES, Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.rejection.typicality.of_classes import MOST_FEATURES, ClassTypicality, class_typicality_of
from pmal.rejection.typicality.whitening import principal_directions

TYPICALITY = "typicality"
FITTED_IMAGES = 5000
"""Training images that the statistics are fitted to, evenly spaced if there are more."""
DIRECTIONS = 64
"""Most directions of a layer. The others hold little but the noise of single images. With 32, networks of
natural images do not see noise (docs/method.md)."""
OFFSET = 0.2
"""Added to a relative deviation before its logarithm, so that a flat channel is not infinitely far."""
SHARE = 0.3
"""What the logarithm is multiplied by. Means see noise, and deviations see flat images: the directions that
are kept are to be of both. Both constants were compared on known classes (docs/method.md)."""


class Typicality(nn.Module):
    """Where the statistics of the training images lie, and how they vary together."""

    linear = False
    """Unknown images near to known classes are as typical as these: only what is far beyond counts."""

    def __init__(self, layers: Mapping[str, tuple[Tensor, Tensor, Tensor]], whitening_MM: Tensor) -> None:
        """Hold what the layers see.

        Args:
            layers: by name the usual deviations (C,) or (0,), the mean (F,) and the directions (F, R), all
                of them float32.
            whitening_MM: float32, too.
        """
        super().__init__()
        self.names = tuple(layers)
        for i, (usual_C, mean_F, directions_FR) in enumerate(layers.values()):
            self.register_buffer(f"usual_{i}", usual_C)
            self.register_buffer(f"mean_{i}", mean_F)
            self.register_buffer(f"directions_{i}", directions_FR)
        self.register_buffer("whitening", whitening_MM)

    def forward(self, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the typicality score, float64 (B,): the length of the whitened differences to the means.

        Larger is less typical.
        """
        parts = []
        for i, name in enumerate(self.names):
            found_BF = log_deviations(statistics[name], self.get_buffer(f"usual_{i}"))
            parts.append((found_BF - self.get_buffer(f"mean_{i}")) @ self.get_buffer(f"directions_{i}"))
        whitened_BM = (torch.cat(parts, dim=1) @ self.get_buffer("whitening")).double()
        total_B: Tensor = torch.linalg.vector_norm(whitened_BM, dim=1)
        return total_B.masked_fill(total_B.isnan(), math.inf)


AnyTypicality = Typicality | ClassTypicality


def fit_typicality(
    network: Classifier,
    images: ImageBatches,
    labels_N: Tensor | None = None,
    advance: Advance | None = None,
    ranks: Ranks = ALONE,
) -> AnyTypicality | None:
    """Return what training images look like to the layers, or in the features of a pretrained network.

    None if the network has no layers to look at, and for more features than a covariance is made of.

    Args:
        network: that sees the images.
        images: of the training set.
        labels_N: the classes of the images; features are compared with those of a class.
        advance: told how many images are done.
        ranks: the processes that share the work.
    """
    names = network.observed
    if not names or (network.on_features and (labels_N is None or network.mean.numel() > MOST_FEATURES)):
        return None
    kept = evenly(len(images), FITTED_IMAGES)
    if len(images) > FITTED_IMAGES:
        images = ChosenImages(images, torch.from_numpy(kept))

    def observe(batch: Tensor) -> tuple[Tensor, ...]:
        _, _, found = network.embed_observed(batch)
        return tuple(found[name] for name in names)

    found = embed_images(network, images, advance=advance, ranks=ranks, embed=observe)
    statistics = {name: x_NF.numpy() for name, x_NF in zip(names, found, strict=True)}
    if labels_N is not None and network.on_features and len(network.spec.class_names) > 1:
        classes = class_typicality_of(statistics[FEATURES], labels_N.cpu().numpy()[kept])
        return classes.to(network.mean.device)
    return typicality_of(statistics).to(network.mean.device)


def typicality_of(statistics: Mapping[str, NDArray[np.float32]], directions: int = DIRECTIONS) -> Typicality:
    """Return the typicality by the statistics of training images, (N, F) by layer.

    Args:
        statistics: of each layer.
        directions: of each layer that count, at most.
    """
    layers, parts = {}, []
    for name, x_NF in statistics.items():
        usual_C = torch.empty(0) if name == FEATURES else _usual_deviations(x_NF)
        found_NF = log_deviations(torch.from_numpy(x_NF), usual_C).numpy()
        mean_F, directions_FR = principal_directions(found_NF, directions)
        layers[name] = usual_C, mean_F, directions_FR
        parts.append((found_NF - mean_F.numpy()) @ directions_FR.numpy())
    _, whitening_MM = principal_directions(np.concatenate(parts, axis=1))
    return Typicality(layers, whitening_MM)


def log_deviations(statistics_BF: Tensor, usual_C: Tensor) -> Tensor:
    """Return channel statistics, (B, F), in which the logarithm of a deviation takes its place.

    Features of another network have no deviations, and no usual ones: they are returned as they are.

    >>> found = log_deviations(torch.tensor([[5.0, 2.0]]), torch.tensor([2.0]))
    >>> (found[0, 1] / SHARE).exp()
    tensor(1.2000)
    """
    plain = statistics_BF.shape[1] - len(usual_C)
    relative_BC = statistics_BF[:, plain:] / usual_C
    return torch.cat([statistics_BF[:, :plain], SHARE * (relative_BC + OFFSET).log()], dim=1)


def _usual_deviations(statistics_NF: NDArray[np.float32]) -> Tensor:
    """Return the mean deviation of each channel over training images, (C,); 1 for one that never varies."""
    mean_C = statistics_NF[:, statistics_NF.shape[1] // 2 :].mean(axis=0, dtype=np.float64)
    return torch.from_numpy(np.where(mean_C > 0, mean_C, 1.0)).float()


def embed_with_typicality(
    network: Classifier, typicality: AnyTypicality | None, images_BCHW: Tensor
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
