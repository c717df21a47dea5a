"""SpHOR: embeddings on a sphere around orthogonal class prototypes (Bahavan et al., 2025, arXiv:2503.08049).

Every image is shown in two augmented views, and the views of two images are mixed besides, with their soft
targets t (`conosr.py`). A projection u of unit length is drawn to the prototypes m_k, which are orthogonal
unit vectors, as a mixture of von Mises-Fisher distributions of equal concentration 1 / temperature:

    loss = - mean_i sum_k t_ik log softmax_k(u_i . m_k / temperature)

A mixture is to lie between two prototypes, and a smooth target away from all by the same amount: what is of
no class has no prototype to be at. A linear classifier learns the classes from the embedding, without a
gradient to the encoder, and its largest logit decides, the score `logit`.

What differs from the public code:
- Its prototypes begin at the means of their classes, are learned by an Adam of their own, and repel each
  other (weight 0.1). Ours are drawn once and stay: orthogonal from the start, as in the text of the paper.
- The classifier learns next to the encoder, instead of in 20 epochs of its own once the encoder is done, and
  without the temperature of 2 of its cross entropy.
- The image that another is mixed with is the next one of the batch, which was shuffled.
- The recipe; `sphor` is the published one, but for the restarts of its schedule.

B images, N = 4 B views and mixtures, K classes, D channels, P numbers of a projection.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from pmal.baselines.conosr import VIEWS, ViewsHead
from pmal.config import Count, Positive, Share
from pmal.ensemble.heads import HeadShape, register_method


def spherical_loss(
    projected_NP: Tensor, prototypes_KP: Tensor, targets_NK: Tensor, temperature: float
) -> Tensor:
    """Return the cross entropy of soft targets with the von Mises-Fisher distributions of the prototypes.

    >>> spherical_loss(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([[1.0, 0.0]]), temperature=0.5)
    tensor(0.1269)
    """
    similar_NK = normalize(projected_NP, dim=1) @ prototypes_KP.T / temperature
    loss: Tensor = -(targets_NK * similar_NK.log_softmax(dim=1)).sum(dim=1).mean()
    return loss


def orthogonal_prototypes(classes: int, width: int) -> Tensor:
    """Draw unit vectors that are orthogonal to each other, (K, P); P is at least K."""
    columns_PK: Tensor = torch.linalg.qr(torch.randn(width, classes, dtype=torch.float64)).Q
    return columns_PK.T.float().contiguous()


@register_method(
    "sphor",
    paper="Bahavan et al., SpHOR: A Representation Learning Perspective on Open-set Recognition, 2025",
    passes=2 * VIEWS,
)
class SphericalHead(ViewsHead):
    """A linear classifier, next to a projection onto the sphere.

    Args:
        temperature: of the similarity to the prototypes; its inverse is the concentration.
        smoothing: of the targets.
        width: numbers of a projection; at least as many as there are classes.
    """

    prototypes: Tensor

    def __init__(
        self, shape: HeadShape, temperature: Positive = 0.1, smoothing: Share = 0.1, width: Count = 32
    ) -> None:
        super().__init__()
        self.temperature, self.smoothing, self.classes = temperature, smoothing, shape.classes
        width = max(width, shape.classes)
        self.projection = nn.Linear(shape.features, width)
        self.classifier = nn.Linear(shape.features, shape.classes, bias=shape.bias)
        self.register_buffer("prototypes", orthogonal_prototypes(shape.classes, width))

    def representation_loss(self, z_ND: Tensor, targets_NK: Tensor) -> Tensor:
        return spherical_loss(self.projection(z_ND), self.prototypes, targets_NK, self.temperature)
