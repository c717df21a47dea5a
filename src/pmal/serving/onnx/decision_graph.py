"""A finished model as one graph: uint8 images, or float32 embeddings, in; class, score and threshold out.

The network computes in float32, the scores in float64, by the very functions that PyTorch predicts with; so a
runtime can differ from it by the rounding of the network alone.

B images, K classes (the network's K0 and those added since), T prototypes of the class that has most,
D channels, N training embeddings, Q different values of a score.
"""

import math

import torch
from torch import Tensor, nn

from pmal.ensemble.heads import scores_of
from pmal.methods import SCORES
from pmal.optimization.distances import DISTANCES, attention_weights
from pmal.rejection.model import OpenSetModel
from pmal.rejection.registered_scores import registered_score
from pmal.rejection.scores import (
    LOGIT_SCORES,
    NEIGHBORS,
    Floats,
    Reference,
    distance_score,
    kth_distance,
    surprise_curve,
)
from pmal.rejection.typicality.of_layers import embed_with_typicality
from pmal.serving.onnx.decision_limits import KnownScores

_NONE: tuple[Tensor, ...] = ()


class Surprise(nn.Module):
    """One score on the scale of the combined one: `numpy.interp` in operations that a graph has."""

    values_Q: Tensor
    surprise_Q: Tensor
    slope_Q: Tensor

    def __init__(self, quantiles: Floats) -> None:
        super().__init__()
        values_Q, surprise_Q = map(torch.from_numpy, surprise_curve(quantiles))
        slope_Q = nn.functional.pad(surprise_Q.diff() / values_Q.diff(), (0, 1))
        self.register_buffer("values_Q", values_Q)
        self.register_buffer("surprise_Q", surprise_Q)
        self.register_buffer("slope_Q", slope_Q)

    def forward(self, score_B: Tensor) -> Tensor:
        values_Q, surprise_Q = self.values_Q, self.surprise_Q
        lowest, highest = values_Q[0], values_Q[-1]
        inside_B = score_B.clamp(min=lowest).where(score_B < highest, highest)
        left_B = (inside_B[:, None] >= values_Q).sum(dim=1) - 1
        found_B = self.slope_Q[left_B] * (inside_B - values_Q[left_B]) + surprise_Q[left_B]
        beyond_B = (score_B - highest).clamp(min=0.0) / (highest - lowest)
        return found_B + beyond_B * (surprise_Q[-1] - surprise_Q[0])


class DecisionGraph(nn.Module):
    """What `OpenSetModel.answer` does, without its checks and blocks, for a batch of any size."""

    prototypes_KTD: Tensor
    mask_KT: Tensor
    training_ND: Tensor
    limits_K: Tensor
    accept: Tensor

    def __init__(self, model: OpenSetModel) -> None:
        super().__init__()
        self.network, self.added = model.classifier, model.added
        self.score, reference = model.deciding_score(), model.reference
        self.typicality, self.penalty = model.typicality, model.penalty
        self.register_buffer("limits_K", model.limits())
        self.register_buffer("accept", torch.tensor(model.rule.accept, dtype=torch.float64))
        self.known = KnownScores(model) if model.calibration else None
        self.takes_accept = self.known is not None and model.rule.threshold is None
        self.usual = _usual_score(model)
        self.scale = model.calibration.scale if model.calibration else None
        parts = self.scale.quantiles if self.scale and self.score == "combined" else {}
        self.surprise = nn.ModuleDict({name: Surprise(values) for name, values in parts.items()})
        self.measure = DISTANCES[reference.distance] if reference else None
        if reference is not None:
            self._keep(reference)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs in the order of what `forward` returns."""
        decision = ("label", "nearest", "score", "threshold")
        names = (
            *decision,
            "probabilities",
            "logits",
            "embedding",
            "typicality",
            "p_value",
            "typicality_threshold",
        )
        return (*names, "distances", "attention") if self.measure else names

    def forward(self, images_BCHW: Tensor, accept: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the outputs of `output_names`.

        Args:
            images_BCHW: the images.
            accept: a share of known images, float64 (); None: that of the rule.
        """
        accept = self.accept if accept is None else accept
        if images_BCHW.ndim == 2:  # embeddings (B, D), each of which is one pixel to the network
            images_BCHW = images_BCHW[:, :, None, None]
        z_BD, logits_BK0, far_B = embed_with_typicality(self.network, self.typicality, images_BCHW)
        nearest_B, reference = logits_BK0.argmax(dim=1), _NONE
        if self.measure is not None:
            z64_BD, prototypes_KTD = z_BD.double(), self.prototypes_KTD.double()
            distances_BK = self.measure(z64_BD, prototypes_KTD, self.mask_KT)
            if self.added:
                closest_B = distances_BK.argmin(dim=1)
                nearest_B = closest_B.where(closest_B >= logits_BK0.shape[1], nearest_B)
            weights_BKT = attention_weights(z64_BD, prototypes_KTD, self.mask_KT)
            chosen_B1T = nearest_B[:, None, None].expand(-1, 1, weights_BKT.shape[2])
            reference = distances_BK, weights_BKT.gather(1, chosen_B1T)[:, 0]
        score_B = self._score(self.score, z_BD, logits_BK0, *reference[:1])
        if self.penalty is not None:
            score_B = score_B + self.penalty(far_B)
        limits_K = self._limits(accept)
        limit_B = limits_K[nearest_B]
        # Said once more: a score of minus infinity would pass if there is no acceptance rate.
        accepted_B = (score_B <= limit_B) & (score_B < math.inf) & (limit_B > -math.inf)
        label_B = nearest_B.where(accepted_B, -1)
        probabilities_BK0 = logits_BK0.double().softmax(dim=1)
        p_value_B = torch.full_like(score_B, math.nan)
        if self.known is not None:
            p_value_B = self.known.p_values(nearest_B, score_B, accept)
        far_limit_B = self._far_limit(limits_K).expand_as(score_B)
        own = probabilities_BK0, logits_BK0, z_BD, far_B, p_value_B, far_limit_B
        return label_B, nearest_B, score_B, limit_B, *own, *reference

    def _limits(self, accept: Tensor) -> Tensor:
        """Return the threshold of each class; minus infinity for what is no acceptance rate."""
        if self.known is None or not self.takes_accept:
            return self.limits_K
        return self.known.limits(accept).where((accept > 0) & (accept < 1), -math.inf)

    def _far_limit(self, limits_K: Tensor) -> Tensor:
        """Return what `OpenSetModel.far_limit` does."""
        if self.penalty is None:
            return torch.full_like(limits_K[0], math.inf)
        return self.penalty.far_limit(limits_K.amax(dim=0) - self.usual)

    def _score(self, name: str, z_BD: Tensor, logits_BK: Tensor, *distances_BK: Tensor) -> Tensor:
        if name in LOGIT_SCORES:
            return LOGIT_SCORES[name](logits_BK)
        if name in self.network.head.own_scores:
            return scores_of(self.network.head, z_BD, logits_BK)[name]
        if name in SCORES:
            return registered_score(name, z_BD, logits_BK)
        if name == "combined" and self.scale is not None:
            found = {
                which: part(self._score(which, z_BD, logits_BK, *distances_BK))
                for which, part in self.surprise.items()
            }
            combined_B: Tensor = self.scale.mean(found)
            return combined_B
        if name == "distance":
            score_B = distance_score(*distances_BK)
        else:
            score_B = kth_distance(z_BD, self.training_ND, min(NEIGHBORS, len(self.training_ND)))
        # Said once more: runtimes need not hand NaN on through a minimum, as torch does.
        return score_B.masked_fill(~z_BD.isfinite().all(dim=1), math.inf)

    def _keep(self, reference: Reference) -> None:
        self.register_buffer("prototypes_KTD", reference.prototypes_KTD)
        self.register_buffer("mask_KT", reference.mask_KT)
        self.register_buffer("training_ND", reference.training_ND)


def _usual_score(model: OpenSetModel) -> float:
    """Return the near score of a usual known image, which a penalty is added to."""
    if model.penalty is None or model.calibration is None:
        return 0.0
    return float(model.calibration.of(model.rule.score).nanmedian())
