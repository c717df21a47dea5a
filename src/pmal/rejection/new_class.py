"""One class more, from samples alone: its prototypes are mined in the embedding as it is, nothing is trained.

After training there is one space, and no second one to measure the robustness of a sample against. So r says
how near a sample lies to its class's own: exp(-x / median of x), with x one minus its mean cosine to all of
them. No training will pull the class together, so its prototypes have to cover it: they are the samples
nearest to the centers of k-means. docs/estimator.md has figures.

N samples of the new class, T prototypes of the class that has most, D channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from pmal.config import MiningConfig
from pmal.errors import DataError, UsageError
from pmal.mining import PrototypeSet, mine
from pmal.mining.quality import exponent
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import Reference


@dataclass(frozen=True)
class AddedClass:
    """What a new class did to held-out samples of the classes that were there before."""

    name: str
    prototypes: int
    held_out: int
    """Held-out samples that this was measured on; 0 where the model kept none."""
    captured: int
    """How many of them are now taken for the new class."""
    accuracy_before: float | None
    """Share of them whose class was right, before any rejection. None where their labels are not known."""
    accuracy_after: float | None

    def __str__(self) -> str:
        text = f"class {self.name}: {self.prototypes} prototypes"
        if not self.held_out:
            return f"{text}; no held-out samples to measure its effect on"
        text += f"; takes {self.captured} of {self.held_out} held-out samples from the other classes"
        if self.accuracy_before is None or self.accuracy_after is None:
            return text
        return f"{text}, accuracy {self.accuracy_before:.1%} -> {self.accuracy_after:.1%}"


def add_class(
    model: OpenSetModel, name: str, z_ND: Tensor, images_NCHW: Tensor, files: Sequence[str]
) -> tuple[OpenSetModel, AddedClass]:
    """The model with one more class, which rejects by the distance from now on, and what that changed.

    A sample is taken for the new class where its prototypes are nearer than those of all others. Distances
    to the nearest class only fall by it: one threshold for all accepts as many samples of the trained classes
    as before, or more. It promises nothing for the new class; nor does that of another score, or one set by
    hand, which is dropped.
    """
    reference = model.reference
    if reference is None:
        raise UsageError(
            "this model has no prototypes, and so no place for a new class: fit with method pmal"
        )
    if name in model.class_names:
        raise UsageError(f"class '{name}' exists already: choose another name")
    mined = mine_class(z_ND, reference.mask_KT.shape[1])
    wider = replace(
        model,
        class_names=(*model.class_names, name),
        rule=_by_distance(model.rule),
        reference=_extend(reference, z_ND, mined.ids),
        gallery=(*model.gallery, _gallery(mined, files)) if model.gallery else (),
        pictures=None if model.pictures is None else torch.cat([model.pictures, images_NCHW[mined.ids]]),
    )
    return wider, _measure(model, wider, len(mined))


def mine_class(z_ND: Tensor, count: int) -> PrototypeSet:
    """Prototypes of one class, chosen in a single space; `ids` are positions among its samples.

    >>> z_ND = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]])
    >>> mine_class(z_ND, 2).ids.tolist()
    [1, 3]
    """
    if not len(z_ND) or not z_ND.isfinite().all():
        raise DataError("a new class needs samples whose embeddings are finite: pass one or more")
    unit_ND = normalize(z_ND.double(), dim=1)
    shortfall_N = (1 - unit_ND @ unit_ND.mean(dim=0)).clamp(min=0)
    labels_N = torch.zeros(len(z_ND), dtype=torch.int64)
    settings = MiningConfig(per_class=count, epsilon=0.0, diversity="kmeans")
    return mine(exponent(shortfall_N), unit_ND, labels_N, settings, num_classes=1)


def _extend(reference: Reference, z_ND: Tensor, chosen_T: Tensor) -> Reference:
    """One more row of prototypes, with zeros under a false mask where it is shorter."""
    most = reference.mask_KT.shape[1]
    row_TD = pad(z_ND[chosen_T].to(reference.prototypes_KTD), (0, 0, 0, most - len(chosen_T)))
    mask_T = torch.arange(most) < len(chosen_T)
    return replace(
        reference,
        prototypes_KTD=torch.cat([reference.prototypes_KTD, row_TD[None]]),
        mask_KT=torch.cat([reference.mask_KT, mask_T[None]]),
    )


def _gallery(mined: PrototypeSet, files: Sequence[str]) -> tuple[Prototype, ...]:
    columns = (mined.ids.tolist(), mined.log_r.tolist(), mined.gap.tolist())
    return tuple(Prototype(i, files[i], log_r, gap) for i, log_r, gap in zip(*columns, strict=True))


def _by_distance(rule: Rule) -> Rule:
    """A threshold that was set for another score means nothing for the distance."""
    return rule if rule.score == "distance" else replace(rule, score="distance", threshold=None)


def _measure(before: OpenSetModel, after: OpenSetModel, prototypes: int) -> AddedClass:
    name, calibration = after.class_names[-1], before.calibration
    if calibration is None or calibration.z is None:
        return AddedClass(name, prototypes, 0, 0, None, None)
    z_ND, labels_N = calibration.z, calibration.labels
    logits_NK = before.logits(z_ND)
    old_N, new_N = (model.nearest_class(z_ND, logits_NK) for model in (before, after))
    captured = int((new_N == len(before.class_names)).sum())
    shares = [None if labels_N is None else float((n == labels_N).double().mean()) for n in (old_N, new_N)]
    return AddedClass(name, prototypes, len(z_ND), captured, *shares)
