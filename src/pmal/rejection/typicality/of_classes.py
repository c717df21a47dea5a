"""How typical the features of a pretrained network are of the known classes.

Features of a network that has seen millions of images contain more than the embedding that is trained on
them keeps. Their direction is compared with the mean of each class, by the Mahalanobis distance with a
covariance that all classes share. The smallest distance counts. Directions are compared because the
length of the features says how much there is to see in an image, not what. But a length far beyond all
training images says that something is wrong, such as a unit or a scale: no class is typical of it.

N training images, B images, K classes, F features.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pmal.ensemble.classifier import FEATURES
from pmal.rejection.typicality.whitening import whitening_matrix

MOST_FEATURES = 4096
"""Most features: with more, the covariance would take more memory and time than all else."""

ROOM = 10.0
"""The least factor by which features may be shorter or longer than those of training images."""


class ClassTypicality(nn.Module):
    """Means of the features of each class, whitened by the covariance within classes."""

    linear = True
    """Every unit counts, from the first on, because near unknown images differ in it too."""
    names = (FEATURES,)

    def __init__(self, center_F: Tensor, whitening_FF: Tensor, means_KF: Tensor, lengths: Tensor) -> None:
        """Store the statistics, all float32.

        Args:
            center_F: mean of all features.
            whitening_FF: whitening matrix.
            means_KF: mean of each class, centered and whitened.
            lengths: the shortest and the longest that features may be, (2,).
        """
        super().__init__()
        self.register_buffer("center", center_F)
        self.register_buffer("whitening", whitening_FF)
        self.register_buffer("means", means_KF)
        self.register_buffer("lengths", lengths)

    def forward(self, statistics: Mapping[str, Tensor]) -> Tensor:
        """Return the typicality score, float64 (B,): the distance to the nearest class.

        Larger is less typical; infinite for features that are far too short or too long.
        """
        w_BF, means_KF = self._whiten(statistics[FEATURES]), self.get_buffer("means").double()
        # cdist would take differences (B, K, F), which are large. In float64, products are exact enough.
        own_B1, means_K = w_BF.square().sum(dim=1, keepdim=True), means_KF.square().sum(dim=1)
        squares_BK = own_B1 - 2 * w_BF @ means_KF.T + means_K
        distance_B = squares_BK.amin(dim=1).clamp(min=0.0).sqrt()
        length_B = _lengths(statistics[FEATURES])
        shortest, longest = self.get_buffer("lengths").double()
        usual_B = (length_B >= shortest) & (length_B <= longest)
        return distance_B.masked_fill(distance_B.isnan() | ~usual_B, math.inf)

    def with_class(self, features_NF: Tensor) -> "ClassTypicality":
        """Return the typicality with one more class, at the mean of these features."""
        mean_F = self._whiten(features_NF.to(self.get_buffer("center"))).mean(dim=0, keepdim=True).float()
        means_KF = torch.cat([self.get_buffer("means"), mean_F])
        (shortest, longest), (less, more) = self.get_buffer("lengths"), usual_lengths(features_NF).to(mean_F)
        lengths = torch.stack([shortest.minimum(less), longest.maximum(more)])
        return ClassTypicality(self.get_buffer("center"), self.get_buffer("whitening"), means_KF, lengths)

    def _whiten(self, features_BF: Tensor) -> Tensor:
        """Return whitened directions in float64: whitening enlarges small rounding errors."""
        centered_BF = directions(features_BF.double()) - self.get_buffer("center")
        whitened_BF: Tensor = centered_BF @ self.get_buffer("whitening").double()
        return whitened_BF


def directions(features_BF: Tensor) -> Tensor:
    """Return features of length one. Features of length zero stay as they are.

    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length_B1 = _lengths(features_BF)[:, None].to(features_BF)
    return features_BF / length_B1.where(length_B1 > 0, 1.0)


def usual_lengths(features_NF: Tensor) -> Tensor:
    """Return the shortest and the longest that features may be, float32 (2,).

    Beyond the lengths of all but the two outermost percent of the training images there is as much room again
    on a scale of logarithms, and at least a factor of 10.

    >>> usual_lengths(torch.tensor([[3.0, 4.0], [5.0, 0.0]]))
    tensor([ 0.5000, 50.0000])
    """
    length_N = _lengths(features_NF.double())
    low, high = torch.quantile(length_N, torch.tensor([0.01, 0.99]).to(length_N))
    room = (high / low).nan_to_num(ROOM).clamp(min=ROOM)
    return torch.stack([low / room, high * room]).clamp(max=torch.finfo(torch.float32).max).float()


def _lengths(features_BF: Tensor) -> Tensor:
    length_B: Tensor = torch.linalg.vector_norm(features_BF.double(), dim=1)
    return length_B


def class_typicality_of(features_NF: NDArray[np.float32], labels_N: NDArray[np.int64]) -> ClassTypicality:
    """Return the typicality from the features and classes of training images."""
    unit_NF = directions(torch.from_numpy(features_NF).double()).numpy()
    classes, places_N = np.unique(labels_N, return_inverse=True)
    means_KF = np.stack([unit_NF[places_N == k].mean(axis=0) for k in range(len(classes))])
    whitening_FF = whitening_matrix(unit_NF - means_KF[places_N])
    center_F = unit_NF.mean(axis=0)
    whitened_KF = torch.from_numpy(means_KF - center_F).float() @ whitening_FF
    lengths = usual_lengths(torch.from_numpy(features_NF))
    return ClassTypicality(torch.from_numpy(center_F).float(), whitening_FF, whitened_KF, lengths)
