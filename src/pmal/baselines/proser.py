"""PROSER: placeholders for what is unknown (Zhou et al., CVPR 2021).

Next to the K known classes the classifier has C placeholders, of which the one with the largest logit counts.
It is trained on with images, and with mixtures of images of two classes, made in the middle of the network:

    f(x)  = (w_1 z, ..., w_K z, max_c p_c z)                   K + 1 logits of the embedding z
    h_ij  = a h_i + (1 - a) h_j,  y_i != y_j,  a ~ Beta(alpha, alpha)          h: the lower half's maps
    loss  = CE(f(x), y) + beta CE(f(x) without y, K + 1) + gamma CE(f(h_ij), K + 1)

The second term makes the placeholder the second choice for known images (classifier placeholders), the third
the first choice for what lies between classes (data placeholders). An image is rejected by

    placeholder = max_c p_c z - max_k w_k z

which orders images as the public code does: that subtracts the two probabilities at a temperature of 1024,
where a softmax is linear in its logits. The paper calibrates the placeholder by a bias, such that 95 % of
known validation images are accepted. That is what a threshold on this difference does: there is no
bias here.

What differs:
- The network is trained on by the recipe of all methods, at its full learning rate and for its epochs; the
  paper fine-tunes for 10 epochs, with 0.001 in the public code.
- All images of a batch are classified and mixed, in one pass through the upper half, so that both are
  normalized alike; the public code classifies one half of a batch and mixes the other, with itself.
- Each image is mixed with the next one of the batch, which was shuffled, by a share of its own; pairs of one
  class do not count. The public code keeps those, and draws one share per batch.
- alpha is a whole number, because Beta(alpha, alpha) is then the median of 2 alpha - 1 uniform numbers.
- If the encoder is not a sequence of layers, the images themselves are mixed.

The defaults are those of the public code.

B images, K classes, C placeholders, D channels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from pmal.config import Count
from pmal.encoders import lower_half, upper_half
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import HeadShape, LinearHead, register_method


def placeholder_loss(
    logits_BL: Tensor,
    mixed_BL: Tensor,
    labels_B: Tensor,
    counts_B: Tensor,
    beta: float = 1.0,
    gamma: float = 0.01,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the loss of L = K + 1 logits of images and of mixtures, the last logit the placeholder's.

    Args:
        logits_BL: of the images.
        mixed_BL: of the mixtures.
        labels_B: of the images.
        counts_B: which mixtures are of two classes.
        beta: weight of the placeholder as second choice.
        gamma: weight of the mixtures.
        smoothing: of the labels.

    >>> logits = torch.tensor([[5.0, 0.0, 2.0]])
    >>> placeholder_loss(logits, logits, torch.tensor([0]), torch.tensor([False]))
    tensor(0.1819)
    """
    logits_BL, mixed_BL = logits_BL.float(), mixed_BL.float()
    placeholder = logits_BL.shape[1] - 1
    unknown_B = torch.full_like(labels_B, placeholder)
    own_BL = labels_B[:, None] == torch.arange(placeholder + 1, device=labels_B.device)
    known = cross_entropy(logits_BL, labels_B, label_smoothing=smoothing)
    second = cross_entropy(logits_BL.masked_fill(own_BL, -math.inf), unknown_B)
    between_B = cross_entropy(mixed_BL, unknown_B, reduction="none")
    # Weights and not a selection: a captured step has one shape, and a batch may be of one class.
    between = (between_B * counts_B).sum() / counts_B.sum().clamp(min=1)
    return known + beta * second + gamma * between


def mix_neighbors(hidden_B: Tensor, labels_B: Tensor, share_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row mixed with the next, the last with the first, and whether their classes differ.

    >>> mix_neighbors(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.tensor([0.75, 0.5]))
    (tensor([[1.5000],
            [2.0000]]), tensor([True, True]))
    """
    other_B = torch.cat([hidden_B[1:], hidden_B[:1]])  # unlike roll, it keeps the layout of the maps
    share = share_B.to(hidden_B.dtype).view(-1, *[1] * (hidden_B.dim() - 1))
    return other_B + share * (hidden_B - other_B), labels_B != labels_B.roll(-1)


def draw_shares(count: int, alpha: int, device: torch.device) -> Tensor:
    """Draw from Beta(alpha, alpha).

    It is the median of 2 alpha - 1 uniform numbers, which a captured step can draw.
    """
    return torch.rand(count, 2 * alpha - 1, device=device).sort(dim=1).values[:, alpha - 1]


@register_method(
    "proser",
    after=True,
    again=True,
    passes=1.5,  # of images and mixtures, the mixtures through the upper half alone
    paper="Zhou et al., Learning Placeholders for Open-Set Recognition, CVPR 2021",
)
class PlaceholderHead(LinearHead):
    """A linear layer for the known classes, and one for what is none of them.

    Args:
        placeholders: how many.
        beta: weight of being the second choice.
        gamma: weight of the mixtures.
        alpha: how near to the middle they are mixed.
    """

    own_scores = ("placeholder",)

    def __init__(
        self,
        shape: HeadShape,
        placeholders: Count = 1,
        beta: float = 1.0,
        gamma: float = 0.01,
        alpha: Count = 1,
    ) -> None:
        super().__init__(shape)
        self.beta, self.gamma, self.alpha = beta, gamma, alpha
        self.placeholders = nn.Linear(shape.features, placeholders, bias=shape.bias)

    def loss(
        self,
        model: Classifier,
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        hidden_B = lower_half(model.encoder, views_BCHW)
        shares_B = draw_shares(len(labels_B), self.alpha, labels_B.device)
        mixed_B, counts_B = mix_neighbors(hidden_B, labels_B, shares_B)
        z_TD = upper_half(model.encoder, torch.cat([hidden_B, mixed_B]))
        logits_TL = torch.cat([self(z_TD), self.placeholders(z_TD).amax(dim=1, keepdim=True)], dim=1)
        logits_BL, mixed_BL = logits_TL.chunk(2)
        return placeholder_loss(logits_BL, mixed_BL, labels_B, counts_B, self.beta, self.gamma, smoothing)

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        # In float64: scores are compared by rank, and the difference of two logits has fewer digits.
        weight_CD, bias_C = self.placeholders.weight.double(), self.placeholders.bias
        guesses_BC = linear(z_BD.double(), weight_CD, None if bias_C is None else bias_C.double())
        return {"placeholder": guesses_BC.amax(dim=1) - logits_BK.double().amax(dim=1)}
