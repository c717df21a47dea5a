"""CPN: a convolutional prototype network (Yang et al., TPAMI 2020; GCPL, Yang et al., CVPR 2018).

Each class has n learned prototypes m_kj in embedding space, of which the nearest counts:

    d_kj = |z - m_kj|^2 / D            logit_k = -gamma min_j d_kj
    loss = cross entropy(logits, y) + weight min_j d_yj

The first term is the paper's distance-based cross entropy, the second its prototype loss, which pulls samples
to a prototype of their class. An image is rejected by its smallest distance, which is the score `logit`.

What differs from the paper: distances are divided by the number of channels D, as in the public code of ARPL,
so that gamma and weight mean the same for every encoder; the recipe is the one of all other methods.

B samples, K classes, n prototypes of each, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import Head, HeadShape, register_head


def squared_distances(z_BD: Tensor, points_KnD: Tensor) -> Tensor:
    """Mean over the channels of the squared difference to every point, (B, K, n).

    >>> squared_distances(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]]))
    tensor([[[2.0000],
             [0.5000]]])
    """
    points_PD = points_KnD.flatten(0, 1)
    squares_BP = z_BD.square().sum(1, keepdim=True) + points_PD.square().sum(1) - 2 * z_BD @ points_PD.T
    return squares_BP.view(len(z_BD), *points_KnD.shape[:2]) / points_KnD.shape[2]


@register_head("cpn")
class PrototypeNetworkHead(Head):
    """Learned prototypes; the nearest decides.

    points: prototypes per class. gamma: how sharp the distances are. weight: of the prototype loss.
    """

    def __init__(self, shape: HeadShape, points: int = 1, gamma: float = 1.0, weight: float = 0.1) -> None:
        super().__init__()
        self.gamma, self.weight = gamma, weight
        self.points = nn.Parameter(0.1 * torch.randn(shape.classes, points, shape.features))

    def forward(self, z_BD: Tensor) -> Tensor:
        # Not in mixed precision: the difference of two large squares has few digits left.
        with torch.autocast(z_BD.device.type, enabled=False):
            distances_BK = squared_distances(z_BD.float(), self.points).amin(dim=2)
            logits_BK: Tensor = -self.gamma * distances_BK
        return logits_BK

    def loss(
        self,
        model: Classifier,
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        logits_BK: Tensor = self(model.encoder(views_BCHW))
        own_B = -logits_BK.gather(1, labels_B[:, None]) / self.gamma
        return cross_entropy(logits_BK, labels_B, label_smoothing=smoothing) + self.weight * own_B.mean()
