"""What corrected answers did to a model, and whether they say that it should be trained again."""

from dataclasses import dataclass

from torch import Tensor

from pmal.rejection.calibration.thresholds import conformal_p_values
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.corrected import Corrected, labels_of
from pmal.rejection.open_world.martingale import Jumper, Ranks, levels

DRIFT = 2.0
"""Evidence, in powers of ten, from which on training is advised: by chance it is reached once in 100."""


@dataclass(frozen=True)
class Renewed:
    """What corrected answers did to a model."""

    known: int
    unknown: int
    learned: int
    """Known samples that became neighbors."""
    prototypes: int
    """Number of prototypes that were added."""
    held_out: int
    """Known samples that joined the held-out ones; right and accepted are counted on these."""
    right_before: int
    right_after: int
    unknown_rejected_before: int
    unknown_rejected_after: int
    threshold_before: float | None
    """The largest of all classes; None if the model has none."""
    threshold_after: float | None
    drift: float
    """Evidence in powers of ten that known samples look more unknown than those held out before."""
    kept_by_hand: bool = False
    """Whether the threshold was set by hand, and so stays."""

    @property
    def train_again(self) -> bool:
        """Whether the evidence of drift is so strong that a full training is advised."""
        return self.drift >= DRIFT

    def __str__(self) -> str:
        text = f"{self.known} known samples: {self.learned} learned from, {self.prototypes} new prototypes; "
        text += f"right of the {self.held_out} others: {self.right_before} before, {self.right_after} now"
        if self.unknown:
            before, after = self.unknown_rejected_before, self.unknown_rejected_after
            text += f"; rejected of {self.unknown} unknown ones: {before} before, {after} now"
        text += f"; threshold {_figure(self.threshold_before)} -> {_figure(self.threshold_after)}"
        text += " (set by hand)" if self.kept_by_hand else ""
        if self.train_again:
            text += (
                f"; known samples look more unknown than those held out before (evidence 10^{self.drift:.1f})"
                ": if they are a fair sample of what comes in, train again with them"
            )
        return text


def measure_renewal(
    before: OpenSetModel, after: OpenSetModel, given: Corrected, learn_N: Tensor, hold_N: Tensor
) -> Renewed:
    """Return what became of corrected samples, some of which were learned from and some held out."""
    unknown_N = given.labels < 0
    old_N, new_N = (labels_of(model, given) for model in (before, after))
    prototypes = [0 if one.reference is None else int(one.reference.mask_KT.sum()) for one in (before, after)]
    right_N = [found == given.labels for found in (old_N, new_N)]
    return Renewed(
        known=int((~unknown_N).sum()),
        unknown=int(unknown_N.sum()),
        learned=int(learn_N.sum()),
        prototypes=prototypes[1] - prototypes[0],
        held_out=int(hold_N.sum()),
        right_before=int(right_N[0][hold_N].sum()),
        right_after=int(right_N[1][hold_N].sum()),
        unknown_rejected_before=int(right_N[0][unknown_N].sum()),
        unknown_rejected_after=int(right_N[1][unknown_N].sum()),
        threshold_before=_limit(before),
        threshold_after=_limit(after),
        drift=_drift(before, given),
        kept_by_hand=before.rule.threshold is not None,
    )


def _limit(model: OpenSetModel) -> float | None:
    return float(model.limits().amax()) if model.has_threshold else None


def _drift(model: OpenSetModel, given: Corrected) -> float:
    """Return the evidence that the known ones among the samples do not look like those held out before."""
    known_N = given.labels >= 0
    if model.calibration is None or not known_N.any():
        return 0.0
    held = model.decisive(model.calibration).of(model.deciding_score())
    score_N = model.decision(given.z, model.logits(given.z), given.far)[known_N]
    ranks, jumper = Ranks(len(held)), Jumper()
    for level in levels(conformal_p_values(held, score_N), len(held)).tolist():
        jumper.bet(ranks.next(level))
    return jumper.evidence


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
