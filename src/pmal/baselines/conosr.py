"""ConOSR: contrastive open-set recognition with soft targets (Xu, Shen and Zhao, AAAI 2023).

Every image is shown in two augmented views, and the views of two images are mixed besides, with their
targets. For N = 4 B images with unit projections u_i and soft targets t_i, both scaled to length 1:

    s_ij = u_i . u_j / temperature        w_ij = t_i . t_j,  w_ii = 0
    loss = - mean_i sum_j w_ij (s_ij - log sum_{a != i} exp s_ia) / sum_j w_ij

so images are drawn together by how much their targets have in common. A classifier of two layers learns the
classes from the embedding, without a gradient to the encoder. Its largest logit decides, the score `logit`.

What differs from the public code:
- The classifier learns next to the encoder, instead of in 20 epochs of its own once the encoder is done, so
  that the cost is that of one training. With the cosine schedule, the encoder hardly changes at the end.
- No spectral norm: the projection is scaled to unit length anyway.
- The image that another is mixed with is the next one of the batch, which was shuffled.
- The loss is a mean over the images; with Adam, as in the public code, its sum trains alike.
- The recipe; `conosr` is the published one, but for the restarts of its schedule.

B images, T = 2 B views, N = 2 T views and mixtures, K classes, D channels, P numbers of a projection.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from pmal.config import Count, Positive, Share
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import Head, HeadShape, register_method

VIEWS = 2


def soft_targets(labels_B: Tensor, classes: int, smoothing: float) -> Tensor:
    """Return 1 - smoothing for the own class and equal shares of the rest for the others, (B, K).

    >>> soft_targets(torch.tensor([1]), 3, smoothing=0.2)
    tensor([[0.1000, 0.8000, 0.1000]])
    """
    own_BK = labels_B[:, None] == torch.arange(classes, device=labels_B.device)
    rest = smoothing / max(classes - 1, 1)
    return rest + own_BK.float() * (1 - smoothing - rest)


def mix_views(views_TCHW: Tensor, targets_BK: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return the views mixed with those of the next image, and its targets mixed alike, (B, K).

    >>> views = torch.tensor([[1.0], [3.0], [10.0], [30.0]])  # two images, two views
    >>> mix_views(views, torch.eye(2), torch.tensor(0.75))
    (tensor([[ 1.5000],
            [ 2.5000],
            [15.0000],
            [25.0000]]), tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]]))
    """
    mixed = [torch.lerp(_next(view), view, share.to(view.dtype)) for view in views_TCHW.chunk(VIEWS)]
    return torch.cat(mixed), torch.lerp(_next(targets_BK), targets_BK, share)


def _next(rows: Tensor) -> Tensor:
    return torch.cat([rows[1:], rows[:1]])  # unlike roll, it keeps the layout of the maps


def soft_contrastive_loss(projected_NP: Tensor, targets_NK: Tensor, temperature: float) -> Tensor:
    """Return how far images are from those whose targets are like theirs; both need not have unit length.

    >>> two_of_a_class = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> soft_contrastive_loss(two_of_a_class, two_of_a_class, temperature=0.5)
    tensor(0.0846)
    """
    unit_NP, target_NK = normalize(projected_NP, dim=1), normalize(targets_NK, dim=1)
    itself_NN = torch.eye(unit_NP.shape[0], dtype=torch.bool, device=unit_NP.device)
    similar_NN = unit_NP @ unit_NP.T / temperature
    log_p_NN = similar_NN - similar_NN.masked_fill(itself_NN, -torch.inf).logsumexp(dim=1, keepdim=True)
    weight_NN = (target_NK @ target_NK.T).masked_fill(itself_NN, 0.0)
    total_N = weight_NN.sum(dim=1).clamp(min=1e-6)  # the only image of its class has nobody to be drawn to
    return -((weight_NN * log_p_NN).sum(dim=1) / total_N).mean()


class ViewsHead(Head):
    """A classifier that learns next to an encoder whose views and mixtures are trained by another loss.

    Subclasses define `classifier` and `representation_loss`.
    """

    views = VIEWS
    classifier: nn.Module
    classes: int
    smoothing: float

    def forward(self, z_BD: Tensor) -> Tensor:
        logits_BK: Tensor = self.classifier(z_BD)
        return logits_BK

    def representation_loss(self, z_ND: Tensor, targets_NK: Tensor) -> Tensor:
        """Return what trains the encoder, of embeddings of all views and mixtures."""
        raise NotImplementedError

    def loss(
        self,
        model: Classifier,
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        targets_BK = soft_targets(labels_B, self.classes, self.smoothing)
        share = torch.rand((), device=labels_B.device)  # Beta(1, 1), one for the batch as in the public code
        mixed_BCHW, mixed_BK = mix_views(views_BCHW, targets_BK, share)
        # One after the other: mixtures are normalized by their own batch.
        z_TD, mixed_TD = model.encoder(views_BCHW), model.encoder(mixed_BCHW)
        targets_NK = torch.cat([targets_BK] * VIEWS + [mixed_BK] * VIEWS)
        known = cross_entropy(self(z_TD.detach()), labels_B.repeat(VIEWS), label_smoothing=smoothing)
        # Not in mixed precision: similarities over a small temperature need the digits.
        with torch.autocast(z_TD.device.type, enabled=False):
            z_ND = torch.cat([z_TD, mixed_TD])
            z_ND = z_ND.to(torch.promote_types(z_ND.dtype, torch.float32))
            learned = self.representation_loss(z_ND, targets_NK.to(z_ND.dtype))
        return known + learned


@register_method("conosr", paper="Xu et al., Contrastive Open Set Recognition, AAAI 2023", passes=2 * VIEWS)
class ContrastiveHead(ViewsHead):
    """A classifier of two layers, next to a projection under the contrastive loss.

    Args:
        temperature: of the contrastive loss.
        smoothing: of its targets.
        width: numbers of a projection.
    """

    def __init__(
        self, shape: HeadShape, temperature: Positive = 0.1, smoothing: Share = 0.2, width: Count = 128
    ) -> None:
        super().__init__()
        self.temperature, self.smoothing, self.classes = temperature, smoothing, shape.classes
        self.projection = nn.Linear(shape.features, width)
        hidden = nn.Linear(shape.features, shape.features)
        self.classifier = nn.Sequential(hidden, nn.ReLU(), nn.Linear(shape.features, shape.classes))

    def representation_loss(self, z_ND: Tensor, targets_NK: Tensor) -> Tensor:
        return soft_contrastive_loss(self.projection(z_ND), targets_NK, self.temperature)
