"""CPN: a convolutional prototype network (Yang et al., TPAMI 2020; GCPL, Yang et al., CVPR 2018).

Each class has n learned prototypes m_kj in embedding space, of which the nearest counts:

    d_kj = |z - m_kj|^2                logit_k = -gamma min_j d_kj
    loss = cross entropy(logits, y) + weight min_j d_yj

The first term is the paper's distance-based cross entropy, the second its prototype loss, which pulls samples
to a prototype of their class. An image is rejected by its smallest distance, which is the score `logit`.

What differs from the paper: the recipe, which is the one of all other methods. With gamma = 0.5 prototypes
learn as fast as the weights of a linear layer. (The public code of ARPL divides the distances of its version,
GCPL, by the number of channels; under our recipes it then stays at chance for many epochs, and with a weight
of 0.1 the classes are not drawn together enough for a distance to reject by.)

B samples, K classes, n prototypes of each, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.config import Count
from pmal.ensemble.heads import Head, HeadShape, register_method


def random_points(shape: HeadShape, points: int = 1) -> nn.Parameter:
    """Return points near the origin, as in the public code of ARPL: (K, n, D)."""
    return nn.Parameter(0.1 * torch.randn(shape.classes, points, shape.features))


def squared_distances(z_BD: Tensor, points_KnD: Tensor) -> Tensor:
    """Return the squared distance of each sample to every point, (B, K, n).

    >>> squared_distances(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]]))
    tensor([[[4.],
             [1.]]])
    """
    points_PD = points_KnD.flatten(0, 1)
    dots_BP = products(z_BD, points_PD)
    squares_BP = z_BD.to(dots_BP.dtype).square().sum(1, keepdim=True) + points_PD.square().sum(1)
    # Not by the number of samples: a graph of any batch size is exported from this.
    return (squares_BP - 2 * dots_BP).view(-1, *points_KnD.shape[:2])


def products(z_BD: Tensor, points_PD: Tensor) -> Tensor:
    """Return z . p in full precision: in a mixed one, differences of large squares have few digits."""
    with torch.autocast(z_BD.device.type, enabled=False):
        return z_BD.to(points_PD.dtype) @ points_PD.T


@register_method(
    "cpn", paper="Yang et al., Convolutional Prototype Network for Open Set Recognition, TPAMI 2020"
)
class PrototypeNetworkHead(Head):
    """Learned prototypes; the nearest decides.

    Args:
        points: prototypes per class.
        gamma: how sharp the distances are.
        weight: of the prototype loss.
    """

    def __init__(self, shape: HeadShape, points: Count = 1, gamma: float = 0.5, weight: float = 0.1) -> None:
        super().__init__()
        self.gamma, self.weight = gamma, weight
        self.points = random_points(shape, points)

    def distances(self, z_BD: Tensor) -> Tensor:
        """Return the squared distance to the nearest prototype of each class."""
        return squared_distances(z_BD, self.points).amin(dim=2)

    def forward(self, z_BD: Tensor) -> Tensor:
        logits_BK: Tensor = -self.gamma * self.distances(z_BD)
        return logits_BK

    def known_loss(self, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        distances_BK = self.distances(z_BD)
        own_B = distances_BK.gather(1, labels_B[:, None])
        known = cross_entropy(-self.gamma * distances_BK, labels_B, label_smoothing=smoothing)
        return known + self.weight * own_B.mean()
