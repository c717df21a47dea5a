"""Thresholds and p-values for any acceptance rate, in operations that a graph has.

B images, K classes, n held-out known images, G groups of them, R images of the largest group.
"""

import math

import torch
from torch import Tensor, nn

from pmal.data.conversions import as_scores
from pmal.rejection.calibration.thresholds import largest_rates
from pmal.rejection.model import OpenSetModel


class Quantiles(nn.Module):
    """The conformal threshold of each group of known scores; infinite if a group is too small.

    Which rank an acceptance rate has is not computed, because a product may be rounded up to the next one:
    the rate is compared with the largest one of each rank.
    """

    scores_GR: Tensor
    rates_GR: Tensor

    def __init__(self, groups: list[Tensor]) -> None:
        super().__init__()
        most = max(map(len, groups))
        rates = [torch.from_numpy(largest_rates(len(known))) for known in groups]
        self.register_buffer("scores_GR", _stack([known.sort().values for known in groups], most, math.inf))
        self.register_buffer("rates_GR", _stack(rates, most, -math.inf))

    def forward(self, accept: Tensor) -> Tensor:
        """Return the smallest known score of a sufficient rank, (G,)."""
        reached_GR = self.rates_GR >= accept
        return self.scores_GR.where(reached_GR, math.inf).amin(dim=1)


class KnownScores(nn.Module):
    """Scores of held-out known images: of all together, and by class if the rule is."""

    known_n: Tensor
    taken_n: Tensor
    counts_K: Tensor

    def __init__(self, model: OpenSetModel) -> None:
        super().__init__()
        if model.calibration is None:
            raise ValueError("no held-out images")
        held, name, count = model.decisive(model.calibration), model.deciding_score(), len(model.class_names)
        known_n, taken_n = torch.from_numpy(as_scores(held.of(name), name)), held.predicted(name)
        self.per_class = model.rule.per_class
        self.register_buffer("known_n", known_n)
        self.register_buffer("taken_n", taken_n)
        self.register_buffer("counts_K", taken_n.bincount(minlength=count).double())
        self.together = Quantiles([known_n])
        self.own = Quantiles([known_n[taken_n == k] for k in range(count)]) if self.per_class else None

    def limits(self, accept: Tensor) -> Tensor:
        """Return the threshold of each class, (K,); a class that is too small has that of all together."""
        all_K: Tensor = self.together(accept).expand(len(self.counts_K))
        if self.own is None:
            return all_K
        own_K: Tensor = self.own(accept)
        return own_K.where(own_K < math.inf, all_K)

    def p_values(self, nearest_B: Tensor, score_B: Tensor, accept: Tensor) -> Tensor:
        """Return the same as `OpenSetModel.p_values`, for another acceptance rate, (B,)."""
        compared_Bn: Tensor = self.known_n >= score_B[:, None]
        total = float(len(self.known_n))
        if self.own is None:
            return (1 + compared_Bn.sum(dim=1).double()) / (total + 1)
        own_B: Tensor = (self.own(accept) < math.inf)[nearest_B]
        same_Bn = (self.taken_n == nearest_B[:, None]) | ~own_B[:, None]
        counts_B = self.counts_K[nearest_B].where(own_B, total)
        return (1 + (compared_Bn & same_Bn).sum(dim=1).double()) / (counts_B + 1)


def _stack(rows: list[Tensor], most: int, fill: float) -> Tensor:
    return torch.stack([nn.functional.pad(row, (0, most - len(row)), value=fill) for row in rows])
