"""RPL and RPL++ (Chen et al., Learning Open Set Network with Discriminative Reciprocal Points, ECCV 2020).

A reciprocal point stands for everything that is *not* of its class: the farther from it, the likelier the
class. Each class has n of them, p_kj, and a learned radius R_k:

    d_kj = |z - p_kj|^2                logit_k = gamma mean_j d_kj
    loss = cross entropy(logits, y) + weight mean_j (d_yj / D - R_y)^2

The second term bounds the space around the reciprocal points: samples of the class stay at a distance R_y
from them, and what is of no class is left near all points. RPL rejects by its largest probability, the score
`probability`, as the public code of ARPL does; RPL++ by its largest logit, the score `logit`.

RPL++ learns prototypes m_kj next to them, as many again, which do what those of CPN do:

    logit_k = gamma (mean_j |z - p_kj|^2 - min_j |z - m_kj|^2) / 2
    loss    = RPL's with these logits + weight min_j |z - m_yj|^2 / D

What differs from the paper: the distances in the second terms are divided by the number of channels D, as in
the public code of ARPL, because their squares grow with D^2; the recipe is the one of all other methods. Of
RPL++ we know the table alone, not the equations: these are ours.

B samples, K classes, n points of each, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.baselines.cpn import random_points, squared_distances
from pmal.config import Count
from pmal.ensemble.heads import Head, HeadShape, register_method

PAPER = "Chen et al., Learning Open Set Network with Discriminative Reciprocal Points, ECCV 2020"


@register_method("rpl", score="probability", paper=PAPER)
class ReciprocalPointsHead(Head):
    """Reciprocal points; the farthest class decides.

    Args:
        points: reciprocal points per class.
        gamma: how sharp the distances are.
        weight: of the bounded space.
    """

    def __init__(self, shape: HeadShape, points: Count = 1, gamma: float = 0.5, weight: float = 0.1) -> None:
        super().__init__()
        self.gamma, self.weight = gamma, weight
        self.points = random_points(shape, points)
        self.radius = nn.Parameter(torch.zeros(shape.classes))

    def forward(self, z_BD: Tensor) -> Tensor:
        return self.gamma * squared_distances(z_BD, self.points).mean(dim=2)

    def bound(self, z_BD: Tensor, labels_B: Tensor) -> Tensor:
        """Return how far, squared, the samples are from the shells around the points of their class."""
        own_Bn = _of_class(squared_distances(z_BD, self.points), labels_B) / z_BD.shape[1]
        return (own_Bn - self.radius[labels_B, None]).square().mean()

    def known_loss(self, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        known = cross_entropy(self(z_BD), labels_B, label_smoothing=smoothing)
        return known + self.weight * self.bound(z_BD, labels_B)


@register_method("rpl++", paper=PAPER)
class PrototypesBesideHead(ReciprocalPointsHead):
    """Reciprocal points to be far from, and as many prototypes to be near to."""

    def __init__(self, shape: HeadShape, points: Count = 1, gamma: float = 0.5, weight: float = 0.1) -> None:
        super().__init__(shape, points, gamma, weight)
        self.prototypes = random_points(shape, points)

    def forward(self, z_BD: Tensor) -> Tensor:
        near_BK = squared_distances(z_BD, self.prototypes).amin(dim=2)
        return (super().forward(z_BD) - self.gamma * near_BK) / 2

    def bound(self, z_BD: Tensor, labels_B: Tensor) -> Tensor:
        near_Bn = _of_class(squared_distances(z_BD, self.prototypes), labels_B) / z_BD.shape[1]
        return super().bound(z_BD, labels_B) + near_Bn.amin(dim=1).mean()


def _of_class(distances_BKn: Tensor, labels_B: Tensor) -> Tensor:
    """Return the distances to the points of the own class, (B, n)."""
    index_B1n = labels_B[:, None, None].expand(-1, 1, distances_BKn.shape[2])
    return distances_BKn.gather(1, index_B1n).squeeze(1)
