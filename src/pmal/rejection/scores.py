"""Unknown scores. Larger means more unknown, for every score.

A sample that breaks the model must not pass as known: if NaN, or an infinity that only an overflow can
explain, is among its numbers, its score is +inf.

Shapes: B samples, K classes, D channels, N samples of the bank, M of them in a block.
"""

import functools
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pmal.ensemble.heads import Head, scores_of
from pmal.errors import DataError, PmalError, UsageError
from pmal.methods import SCORES
from pmal.optimization.distances import DISTANCES
from pmal.rejection.registered_scores import registered_score

Floats = NDArray[np.float64]
Surprise = TypeVar("Surprise", Floats, torch.Tensor)

NEIGHBORS = 5
"""Which of the nearest training samples counts."""

_QUERY_ROWS, _BANK_ROWS = 512, 8192
"""Samples compared at a time: a block of similarities takes 32 MB, however large the bank is."""

_QUANTILES = 1001
"""What a scale keeps of a score at most, so that its size does not grow with the held-out set."""


def probability_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """Return one minus the largest softmax probability (the paper's PR).

    Computed as the sum of the other classes' probabilities, which keeps its digits if the largest
    probability rounds to one.

    >>> probability_score(torch.tensor([[9.0, 0.0], [0.0, 0.0]]))
    tensor([1.2339e-04, 5.0000e-01], dtype=torch.float64)
    """
    probabilities_BK = logits_BK.double().softmax(dim=1)
    others_BK = probabilities_BK.scatter(1, logits_BK.argmax(dim=1, keepdim=True), 0.0)
    return _broken_is_unknown(others_BK.sum(dim=1), logits_BK)


def logit_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """Return minus the largest logit.

    >>> logit_score(torch.tensor([[9.0, 0.0], [float("nan"), 0.0]]))
    tensor([-9., inf], dtype=torch.float64)
    """
    return _broken_is_unknown(-logits_BK.double().amax(dim=1), logits_BK)


def energy_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """Return the free energy: minus the log of the sum of exponentials of the logits."""
    return _broken_is_unknown(-logits_BK.double().logsumexp(dim=1), logits_BK)


LOGIT_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "probability": probability_score,
    "logit": logit_score,
    "energy": energy_score,
}
"""The scores that need nothing but logits, by the names used everywhere."""


def distance_score(distances_BK: torch.Tensor) -> torch.Tensor:
    """Return the smallest distance to the prototypes of any class (the paper's DR).

    >>> distance_score(torch.tensor([[0.5, 0.25], [float("inf"), 0.75]]))
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    return _nan_is_unknown(distances_BK.double().amin(dim=1))


def neighbor_score(z_BD: torch.Tensor, bank_ND: torch.Tensor, k: int = NEIGHBORS) -> torch.Tensor:
    """Return the cosine distance to the k-th nearest of all training embeddings, whatever their classes.

    The k-th and not the nearest, because one odd training image must not vouch for an unknown. In float64:
    the distances of a well trained model's known samples fall below what float32 can tell from zero.
    An embedding of length zero has no direction: its distance is 1, as between orthogonal ones.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    >>> neighbor_score(torch.tensor([[5.0, 0.0]]), bank, k=2)
    tensor([1.], dtype=torch.float64)
    """
    _check_bank(z_BD, bank_ND, k)
    return _neighbor_score(z_BD, bank_ND, k)


def _neighbor_score(z_BD: torch.Tensor, bank_ND: torch.Tensor, k: int, ready: bool = False) -> torch.Tensor:
    blocks = torch.split(z_BD, _QUERY_ROWS)
    distance_B = torch.cat([kth_distance(block, bank_ND, k, ready) for block in blocks])
    return distance_B.masked_fill(~z_BD.isfinite().all(dim=1), math.inf)


def kth_distance(z_BD: torch.Tensor, bank_ND: torch.Tensor, k: int, ready: bool = False) -> torch.Tensor:
    """Return what `neighbor_score` does for finite embeddings, without its checks.

    Args:
        z_BD: embeddings.
        bank_ND: training embeddings.
        k: which neighbor counts.
        ready: the rows of the bank have length 1 already.
    """
    unit_BD = _unit(z_BD)
    nearest = unit_BD[:, :0]
    for block_MD in torch.split(bank_ND, _BANK_ROWS):
        block_MD = block_MD.to(z_BD.device)
        cosine_BM = unit_BD @ (block_MD if ready else _unit(block_MD)).T
        nearest = torch.cat([nearest, cosine_BM.topk(min(k, len(block_MD))).values], dim=1)
        nearest = nearest.topk(min(k, nearest.shape[1])).values
    return (1 - nearest[:, -1]).clamp(min=0.0)  # rounding takes the cosine of equal directions above 1


@dataclass(frozen=True, eq=False)
class ScoreScale:
    """What each score looks like on held-out known samples; unknown samples have no part in it.

    Calibrate the threshold of the combined score on other known samples than these: its guarantee rests on
    scores that were not fitted to the samples it is calibrated on.
    """

    quantiles: dict[str, Floats]
    """Per score, values that split the known samples into equal shares, in rising order."""
    weights: dict[str, float]
    """Per score, how much it counts in the mean."""

    def __post_init__(self) -> None:
        if not self.quantiles:
            raise UsageError("a score scale without scores: pass at least one, by name")
        for name, values in self.quantiles.items():
            _check_quantiles(name, values)
            weight = self.weights.get(name)
            if weight is None or not 0 < weight < math.inf:
                raise DataError(f"score '{name}': its weight is {weight}: pass a positive number")

    @classmethod
    def fit(
        cls, known_scores: Mapping[str, torch.Tensor], weights: Mapping[str, float] | None = None
    ) -> "ScoreScale":
        """Fit a scale to the scores of held-out known samples. Samples that broke the model are left out.

        A score without a weight counts once.

        >>> ScoreScale.fit({"distance": torch.tensor([0.25, 0.0, 0.5])}).to_lists()
        {'distance': {'weight': 1.0, 'quantiles': [0.0, 0.25, 0.5]}}
        """
        given = weights or {}
        quantiles = {name: _quantiles(_floats(scores)) for name, scores in known_scores.items()}
        return cls(quantiles, {name: float(given.get(name, 1.0)) for name in known_scores})

    def to_lists(self) -> dict[str, dict[str, Any]]:
        """Return the scale for a JSON file."""
        return {
            name: {"weight": self.weights[name], "quantiles": values.tolist()}
            for name, values in self.quantiles.items()
        }

    @classmethod
    def from_lists(cls, parts: Mapping[str, Mapping[str, Any]]) -> "ScoreScale":
        """Return what `to_lists` wrote; anything else is rejected."""
        try:
            quantiles = {name: np.asarray(part["quantiles"], np.float64) for name, part in parts.items()}
            return cls(quantiles, {name: float(part["weight"]) for name, part in parts.items()})
        except PmalError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError("score scale: pass a weight and a list of quantiles for each score") from None

    def mean(self, surprise: Mapping[str, Surprise]) -> Surprise:
        """Return the weighted mean of what each score says; arrays or tensors."""
        parts = [surprise[name] * weight for name, weight in self.weights.items()]
        return functools.reduce(operator.add, parts) / sum(self.weights.values())


def combined_score(scores: Mapping[str, torch.Tensor], scale: ScoreScale) -> torch.Tensor:
    """Return the weighted mean surprise over the scores of a scale; others are ignored.

    Surprise is -log of the share of known samples that look at least as unknown. It has no unit, so a bounded
    distance and an unbounded logit can be compared, and rarity counts, not shape: a mean of the shares would
    treat 1 in 20 and 1 in 1000 as nearly equal, one of standard deviations would follow the longest tail.

    >>> scale = ScoreScale.fit({"a": torch.arange(9.0), "b": -torch.arange(9.0)})
    >>> combined_score({"a": torch.tensor([4.0, 8.0]), "b": torch.tensor([-4.0, 0.0])}, scale)
    tensor([0.6931, 2.3026], dtype=torch.float64)
    """
    missing = [name for name in scale.quantiles if name not in scores]
    if missing:
        raise UsageError(f"the combined score needs the score '{missing[0]}', too: pass it")
    found = {name: _surprise(_floats(scores[name]), values) for name, values in scale.quantiles.items()}
    if len({len(values) for values in found.values()}) > 1:
        lengths = ", ".join(f"'{name}' {len(values)}" for name, values in found.items())
        raise DataError(f"scores of different length ({lengths}): pass each for the same samples")
    return torch.from_numpy(scale.mean(found)).to(next(iter(scores.values())).device)


def surprise_curve(quantiles_Q: Floats) -> tuple[Floats, Floats]:
    """Return the different values among the quantiles, rising, and the surprise at each."""
    values, counts = np.unique(quantiles_Q, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts + 1) / 2
    return values, -np.log((len(quantiles_Q) - mean_rank) / (len(quantiles_Q) + 1))


def _surprise(scores_B: Floats, quantiles_Q: Floats) -> Floats:
    """Return -log of the share of known samples at or above a score, linear between the quantiles.

    Above the largest the line through the first and the last point goes on, so that order is kept where every
    unknown sample may stand. Below the smallest it does not: being very well known by one score must not
    outweigh the alarm of another.
    """
    values, surprise = surprise_curve(quantiles_Q)
    beyond_B = np.maximum(scores_B - values[-1], 0.0) / (values[-1] - values[0])
    found_B: Floats = np.interp(scores_B, values, surprise) + beyond_B * (surprise[-1] - surprise[0])
    return found_B


def _quantiles(scores_N: Floats) -> Floats:
    finite = scores_N[np.isfinite(scores_N)]
    if finite.size <= _QUANTILES:
        return np.sort(finite)
    found: Floats = np.quantile(finite, np.linspace(0.0, 1.0, _QUANTILES))
    return found


def _check_quantiles(name: str, values: Floats) -> None:
    if values.ndim != 1 or values.size < 2:
        raise DataError(f"score '{name}': a scale needs at least 2 known samples with a finite score")
    if not np.isfinite(values).all() or (np.diff(values) < 0).any():
        raise DataError(f"score '{name}': its quantiles are not finite and rising: fit the scale again")
    if values[0] == values[-1]:
        raise DataError(f"score '{name}' is the same for all known samples: leave it out of the combination")


def _check_bank(z_BD: torch.Tensor, bank_ND: torch.Tensor, k: int) -> None:
    if z_BD.ndim != 2 or bank_ND.ndim != 2 or z_BD.shape[1] != bank_ND.shape[1]:
        shapes = f"{tuple(z_BD.shape)} and {tuple(bank_ND.shape)}"
        raise UsageError(f"embeddings have shapes {shapes}: pass two matrices with the same channels")
    if not 1 <= k <= len(bank_ND):
        raise UsageError(f"k is {k}: the bank holds {len(bank_ND)} embeddings, pass 1 to that many")
    broken = (~bank_ND.isfinite().all(dim=1)).nonzero()
    if len(broken):
        raise DataError(f"bank: embedding {int(broken[0])} has NaN or infinite values: leave it out")


def _unit(z_BD: torch.Tensor) -> torch.Tensor:
    """Return rows of length 1, by way of a largest entry of 1: no square overflows, and zero stays zero."""
    z_BD = z_BD.double()
    largest_B1 = z_BD.abs().amax(dim=1, keepdim=True)
    z_BD = z_BD / largest_B1.where(largest_B1 > 0, 1.0)
    length_B1 = z_BD.square().sum(dim=1, keepdim=True).sqrt()
    return z_BD / length_B1.clamp(min=1.0)


def _broken_is_unknown(score_B: torch.Tensor, logits_BK: torch.Tensor) -> torch.Tensor:
    """Make what broke the model unknown.

    Minus infinity is a logit that a mask may set; NaN and plus infinity are none.
    """
    broken_B = ~(logits_BK < math.inf).all(dim=1)
    return _nan_is_unknown(score_B).masked_fill(broken_B, math.inf)


def _nan_is_unknown(score_B: torch.Tensor) -> torch.Tensor:
    return score_B.masked_fill(score_B.isnan(), math.inf)


def _floats(scores_B: torch.Tensor) -> Floats:
    floats: Floats = _nan_is_unknown(scores_B.detach().cpu().double()).numpy()
    return floats


_KEPT_NUMBERS = 1 << 22
"""Bytes of training embeddings that are kept at length 1 as well: 32 MiB."""
_BLOCK_IMAGES = 256
_BLOCK_NUMBERS = 1 << 25
"""Numbers of the attended sets (images x classes x channels) at a time: a quarter of a GiB."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What the scores beyond logits compare an embedding with."""

    prototypes_KTD: torch.Tensor
    mask_KT: torch.Tensor
    distance: str
    training_ND: torch.Tensor

    def ready(self, device: torch.device) -> "Reference":
        """Return the same on a device, with prototypes in float64: no use need copy or convert them."""
        table_KTD, training_ND = self.prototypes_KTD.to(device).double(), self.training_ND.to(device)
        return Reference(table_KTD, self.mask_KT.to(device), self.distance, training_ND)

    def neighbor_score(self, z_BD: torch.Tensor) -> torch.Tensor:
        """Return the score `neighbors` of embeddings, (B,)."""
        k = min(NEIGHBORS, len(self.training_ND))
        if self._unit_bank is None:
            return neighbor_score(z_BD, self.training_ND, k)
        return _neighbor_score(z_BD, self._unit_bank.to(z_BD.device), k, ready=True)

    @functools.cached_property
    def _unit_bank(self) -> torch.Tensor | None:
        """Training embeddings of length 1, if they are few: a single image is else mostly their work."""
        if self.training_ND.numel() > _KEPT_NUMBERS:
            return None
        _check_bank(self.training_ND, self.training_ND, 1)
        return _unit(self.training_ND)


def unknown_scores(
    z_BD: torch.Tensor,
    logits_BK: torch.Tensor,
    reference: Reference | None = None,
    scale: ScoreScale | None = None,
    names: Collection[str] | None = None,
    head: Head | None = None,
) -> dict[str, torch.Tensor]:
    """Return the scores asked for, by name (None: all there are but those of plugins).

    Without a reference there are those of the logits; with it `distance` and `neighbors`; with a scale
    `combined`; with a head its own; and those that plugins have registered.
    """
    there: dict[str, Callable[[], torch.Tensor]] = {
        name: functools.partial(score, logits_BK) for name, score in LOGIT_SCORES.items()
    }
    if reference is not None:
        there["distance"] = lambda: distance_score(class_distances(z_BD, reference))
        there["neighbors"] = lambda: reference.neighbor_score(z_BD)
    if head is not None and head.own_scores:
        own = functools.cache(lambda: scores_of(head, z_BD, logits_BK))
        there |= {name: functools.partial(lambda name: own()[name], name) for name in head.own_scores}
    wanted = [*there, *(["combined"] if scale else [])] if names is None else list(names)
    added = (name for name in wanted if name in SCORES)
    there |= {name: functools.partial(registered_score, name, z_BD, logits_BK) for name in added}
    needed = {*wanted, *(scale.quantiles if scale and "combined" in wanted else ())}
    scores = {name: compute() for name, compute in there.items() if name in needed}
    if scale and "combined" in wanted:
        scores["combined"] = combined_score(scores, scale)
    return {name: scores[name] for name in wanted}


def class_distances(z_BD: torch.Tensor, reference: Reference) -> torch.Tensor:
    """Return the distance of every embedding to every class's prototypes, float64 (B, K)."""
    measure, prototypes_KTD = DISTANCES[reference.distance], reference.prototypes_KTD.to(z_BD.device).double()
    mask_KT = reference.mask_KT.to(z_BD.device)
    # In blocks: the attended sets of all images at once would not fit into memory, or into a CPU's cache.
    rows = max(1, _BLOCK_NUMBERS // (len(mask_KT) * z_BD.shape[1]))
    rows = min(rows, _BLOCK_IMAGES) if z_BD.device.type == "cpu" else rows
    return torch.cat(
        [measure(block_BD.double(), prototypes_KTD, mask_KT) for block_BD in torch.split(z_BD, rows)]
    )
