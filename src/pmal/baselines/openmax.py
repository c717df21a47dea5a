"""OpenMax: activations far out for their class count for an unknown one (Bendale and Boult, CVPR 2016).

After the training of a softmax classifier, per class k: the mean m_k of the activations v of the training
images that are classified correctly, their distances |v - m_k|, and a Weibull distribution (shape s_k, scale
l_k) of the `tail` largest of these, by maximum likelihood. Of its `alpha` largest activations an image
gives up a part, which the unknown class gets:

    part_k = (alpha - rank_k) / alpha (1 - exp(-(|v - m_k| / l_k)^s_k))      rank 0: the largest activation
    v'_k   = v_k (1 - part_k)        v'_unknown = sum_k v_k part_k        openmax = softmax(v')_unknown

The last is the score. The class is that of the largest logit, as for every method; OpenMax's own, the largest
v'_k, is another one where the first is revised away.

What differs from the paper and its code:
- Activations are the logits minus their mean over the classes, which no softmax can tell from the logits. So
  the largest is never negative: the part of a negative one would count against the unknown class.
- The distance is Euclidean; the code adds a 200th of it, a scale made for AlexNet, to the cosine distance.
- The Weibull distribution begins at zero; libMR's begins at the smallest distance of the tail minus 1, a
  length that means something else in every network.
- The paper rejects if the unknown class is the largest, and if the largest probability is small. Here
  the unknown class's probability has a threshold; images of the second kind have a larger one, too.
- Ranks count as in the code; in the paper's equation the last of the alpha classes gives up nothing.
- A class with fewer than 10 correctly classified images (or images that differ from their mean) has a mean of
  its own, of all its images if none is classified correctly, and one Weibull distribution of the tails of all
  other classes together.

B images, N training images, K classes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.config import Count
from pmal.ensemble.heads import HeadShape, LinearHead, register_method

Floats = NDArray[np.float64]

FEWEST = 10
"""Correctly classified images from which on a class has a tail of its own."""
STEEPEST = 1e3
"""The largest shape: equal distances have none."""


def fit_weibull(values: Floats) -> tuple[float, float]:
    """Return shape and scale of the likeliest Weibull distribution that begins at zero.

    Values of zero are left out.

    >>> shape, scale = fit_weibull(np.array([1.0, 2.0, 3.0]))
    >>> print(f"{shape:.4f} {scale:.4f}")
    2.7386 2.2586
    """
    from scipy.optimize import brentq

    logs = np.log(values[values > 0])
    if not logs.size:  # every image is at the mean: so is nothing else
        return STEEPEST, float(np.finfo(np.float64).tiny)
    top = logs.max()
    logs = logs - top  # the largest value is 1 now, and its powers cannot overflow

    def slope(shape: float) -> float:
        """Return the slope of the log likelihood, with its sign turned; it rises with the shape."""
        powers = np.exp(shape * logs)
        return float((powers * logs).sum() / powers.sum() - 1 / shape - logs.mean())

    flattest = 1 / STEEPEST
    if slope(STEEPEST) <= 0:
        shape = STEEPEST
    else:
        shape = flattest if slope(flattest) >= 0 else float(brentq(slope, flattest, STEEPEST))
    return shape, float(np.exp(top + np.log(np.exp(shape * logs).mean()) / shape))


def centered(logits_BK: Tensor) -> Tensor:
    """Return activations, float64: the logits minus their mean over the classes."""
    logits_BK = logits_BK.double()
    return logits_BK - logits_BK.mean(dim=1, keepdim=True)


def mean_activations(logits_NK: Tensor, labels_N: Tensor) -> tuple[Tensor, list[Floats]]:
    """Return the mean (K, K) of each class's correctly classified images, and their distances to it."""
    active_NK, distances = centered(logits_NK), []
    means_KK = active_NK.new_zeros(logits_NK.shape[1], logits_NK.shape[1])
    correct_N = logits_NK.argmax(dim=1) == labels_N
    for k in range(len(means_KK)):
        own_N = labels_N == k
        right_MK = active_NK[own_N & correct_N]
        chosen_MK = right_MK if len(right_MK) else active_NK[own_N]
        if len(chosen_MK):
            means_KK[k] = chosen_MK.mean(dim=0)
        distances.append((chosen_MK - means_KK[k]).norm(dim=1).numpy())
    return means_KK, distances


def fit_tails(distances: list[Floats], tail: int) -> Floats:
    """Return shape and scale of each class, (K, 2)."""
    tails = [np.sort(values[values > 0])[-tail:] for values in distances]
    is_rich = [(values > 0).sum() >= FEWEST for values in distances]
    rich = [values for values, enough in zip(tails, is_rich, strict=True) if enough]
    together = fit_weibull(np.concatenate(rich or tails))
    found = [fit_weibull(t) if enough else together for t, enough in zip(tails, is_rich, strict=True)]
    return np.array(found)


def unknown_probability(
    logits_BK: Tensor, means_KK: Tensor, shape_K: Tensor, scale_K: Tensor, alpha: int
) -> Tensor:
    """Return the unknown class's share of the softmax over revised activations, float64 (B,).

    >>> means, ones = torch.tensor([[4.0, -4.0], [-4.0, 4.0]]).double(), torch.ones(2)
    >>> unknown_probability(torch.tensor([[8.0, 0.0], [20.0, -20.0]]), means, ones, ones, alpha=1)
    tensor([0.0180, 1.0000], dtype=torch.float64)
    """
    active_BK = centered(logits_BK)
    weight_A = 1 - torch.arange(alpha, dtype=torch.float64, device=active_BK.device) / alpha
    largest_BA = active_BK.topk(alpha, dim=1).indices
    weight_BK = torch.zeros_like(active_BK).scatter(1, largest_BA, weight_A.expand(largest_BA.shape))
    part_BK = -weight_BK * torch.expm1(-((_distances(active_BK, means_KK) / scale_K) ** shape_K))
    unknown_B1 = (active_BK * part_BK).sum(dim=1, keepdim=True)
    revised_BL = torch.cat([unknown_B1, active_BK * (1 - part_BK)], dim=1)
    return revised_BL.softmax(dim=1)[:, 0]


def _distances(active_BK: Tensor, means_KK: Tensor) -> Tensor:
    # No runtime has cdist; a graph is asked for few images at a time. Older versions of torch export nothing.
    if getattr(torch.compiler, "is_exporting", bool)():
        return (active_BK[:, None] - means_KK).square().sum(dim=2).sqrt()
    # Not by matrix products: those are chosen by batch size, and a score must not depend on it.
    return torch.cdist(active_BK, means_KK, compute_mode="donot_use_mm_for_euclid_dist")


@register_method("openmax", after=True, paper="Bendale and Boult, Towards Open Set Deep Networks, CVPR 2016")
class OpenMaxHead(LinearHead):
    """A trained linear layer, and where each class's activations end.

    Args:
        tail: how many of a class's largest distances are looked at.
        alpha: how many activations are revised.
    """

    own_scores = ("openmax",)
    is_fitted_after = True
    means: Tensor
    weibull: Tensor

    def __init__(self, shape: HeadShape, tail: Count = 20, alpha: Count = 10) -> None:
        super().__init__(shape)
        self.tail, self.alpha = tail, min(alpha, shape.classes)
        self.register_buffer("means", torch.zeros(shape.classes, shape.classes, dtype=torch.float64))
        self.register_buffer("weibull", torch.ones(shape.classes, 2, dtype=torch.float64))

    def fit_after(self, z_ND: Tensor, logits_NK: Tensor, labels_N: Tensor) -> None:
        means_KK, distances = mean_activations(logits_NK, labels_N)
        self.means.copy_(means_KK)
        self.weibull.copy_(torch.from_numpy(fit_tails(distances, self.tail)))

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        shape_K, scale_K = self.weibull.unbind(dim=1)
        return {"openmax": unknown_probability(logits_BK, self.means, shape_K, scale_K, self.alpha)}
