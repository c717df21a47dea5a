"""Adding a class from samples alone: its prototypes are mined in the existing embedding, nothing is trained.

After training there is one space. The robustness of a sample needs a second one. So here r measures how
near a sample lies to its own class: exp(-x / median of x), with x one minus its mean cosine to all of
them. No training will pull the class together, so its prototypes have to cover it: they are the samples
nearest to the centers of k-means. docs/estimator.md has figures.

The rule is kept if possible. The network has no logit for the new class and would take its samples for
unknown. So a rule by logits becomes a rule by the distance, and `combined` loses its logits.

N samples of the new class, T prototypes of the class that has most, D channels; K classes, the first K0 of
which the network was trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from pmal.config import MiningConfig
from pmal.data.samples import evenly
from pmal.ensemble.classifier import FEATURES
from pmal.ensemble.embeddings import batch_for
from pmal.errors import DataError, UsageError
from pmal.mining.miner import mine
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import exponent
from pmal.rejection.building import thumbnails
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import ADDED_SCORES, OpenSetModel, Prototype, Rule
from pmal.rejection.scores import NEIGHBORS, Reference, class_distances
from pmal.rejection.training_scores import BANK_LIMIT
from pmal.rejection.typicality.of_classes import ClassTypicality
from pmal.rejection.typicality.of_layers import TYPICALITY, AnyTypicality

_PROBED = 1000
"""Largest number of prototypes on which the scale of logits per distance is measured."""

ATYPICAL = 0.1
"""If this share of a new class's samples is unlike the training images, typicality of layers is left out."""


@dataclass(frozen=True)
class AddedClass:
    """Effect of a new class on held-out samples of the classes that were there before."""

    name: str
    prototypes: int
    held_out: int
    """Number of held-out samples that this was measured on. 0: the model kept none."""
    captured: int
    """Number of them that get the new class now."""
    accuracy_before: float | None
    """Share of them whose class was right, before any rejection. None: their labels are not known."""
    accuracy_after: float | None
    rule_before: str = ""
    """The rule before: its score, what it consisted of, and a fixed threshold."""
    rule_after: str = ""
    """The rule from now on. It differs if the rule before cannot judge samples of the new class."""
    seen: bool = False
    """Whether the network was trained on them, as it is if samples are held out in turn."""

    @property
    def rule_changed(self) -> bool:
        """Whether samples are now rejected by another rule."""
        return self.rule_before != self.rule_after

    def __str__(self) -> str:
        text = f"class {self.name}: {self.prototypes} prototypes; {self._effect()}"
        if self.rule_changed:
            text += f"; the rule changed from {self.rule_before} to {self.rule_after}"
        return text

    def _effect(self) -> str:
        if not self.held_out:
            return "no held-out samples to measure its effect on"
        kind = "training" if self.seen else "held-out"
        text = f"takes {self.captured} of {self.held_out} {kind} samples from the other classes"
        if self.accuracy_before is None or self.accuracy_after is None:
            return text
        return f"{text}, accuracy {self.accuracy_before:.1%} -> {self.accuracy_after:.1%}"


def add_class(
    model: OpenSetModel,
    name: str,
    z_ND: Tensor,
    images_NCHW: Tensor,
    files: Sequence[str],
    far_N: Tensor | None = None,
) -> tuple[OpenSetModel, AddedClass]:
    """Return the model with one more class, and what that changed.

    A sample gets the new class if its prototypes are nearer than those of all others. The distances to the
    nearest class and to the nearest training samples can only become smaller. So one threshold for all
    classes accepts as many samples of the trained classes as before, or more. It promises nothing for the new
    class.

    Rules by `distance` and `neighbors` stay as they are. `combined` now consists of these two and is
    calibrated again on the stored scores. Any other score is replaced by the distance. So are `neighbors` and
    `combined` if the class has fewer samples than `neighbors` looks at. A threshold that was set by hand is
    dropped together with its score.

    Typicality of features gets the new class too. Typicality of layers is left out if a tenth or more of the
    new class's samples are unlike the training images. The result tells whether the rule changed.

    Args:
        model: the finished model.
        name: of the new class.
        z_ND: embeddings of its samples.
        images_NCHW: its samples.
        files: their names.
        far_N: their typicality scores. None: not measured.

    Raises:
        UsageError: the model has no prototypes, or has a class of this name.
    """
    reference = model.reference
    if reference is None:
        raise UsageError(
            "this model has no prototypes, and so no place for a new class: fit with method pmal"
        )
    if name in model.class_names:
        raise UsageError(f"class '{name}' exists already: choose another name")
    mined = mine_class(z_ND, reference.mask_KT.shape[1])
    typicality = _widened(model, images_NCHW, far_N)
    kept = (*ADDED_SCORES, TYPICALITY) if typicality else ADDED_SCORES
    wider = replace(
        model,
        class_names=(*model.class_names, name),
        reference=_extend(reference, z_ND, mined.ids),
        gallery=(*model.gallery, mined_gallery(mined, files)) if model.gallery else (),
        pictures=_with_pictures(model.pictures, images_NCHW[mined.ids]),
        calibration=_calibrate(model.calibration, kept),
        typicality=typicality,
    )
    wider = replace(wider, rule=_keep_rule(model, wider, len(z_ND)))
    return wider, _measure(model, wider, len(mined))


def class_probabilities(model: OpenSetModel, z_ND: Tensor, logits_NK: Tensor) -> Tensor:
    """Return the probability of each class, given that there are no others, float64 (N, K).

    It is the softmax of the logits. A class that was added without training has no logit. Its logit is the
    largest one of the trained classes, plus a lead: how much nearer it is than all of them. The lead is in
    units in which distances and logits separate the classes of the prototypes equally. So the most probable
    class is the predicted one, and an added class that is as near as the nearest trained one is as probable
    as the best of them.
    """
    logits_NK = logits_NK.cpu().double()
    if model.added:
        logits_NK = torch.cat([logits_NK, _added_logits(model, z_ND.cpu(), logits_NK)], dim=1)
    return logits_NK.softmax(dim=1)


def mine_class(z_ND: Tensor, count: int) -> PrototypeSet:
    """Return prototypes of one class, chosen in a single space. `ids` are positions among its samples.

    Args:
        z_ND: embeddings of its samples.
        count: number of prototypes.

    Raises:
        DataError: there are no samples, or an embedding is not finite.

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
    """Return the reference with one more row of prototypes, padded under a false mask, and more neighbors."""
    kept_ND = z_ND[torch.from_numpy(evenly(len(z_ND), BANK_LIMIT))].to(reference.training_ND)
    most = reference.mask_KT.shape[1]
    row_TD = pad(z_ND[chosen_T].to(reference.prototypes_KTD), (0, 0, 0, most - len(chosen_T)))
    mask_T = torch.arange(most) < len(chosen_T)
    return replace(
        reference,
        prototypes_KTD=torch.cat([reference.prototypes_KTD, row_TD[None]]),
        mask_KT=torch.cat([reference.mask_KT, mask_T[None]]),
        training_ND=torch.cat([reference.training_ND, kept_ND]),
    )


def mined_gallery(mined: PrototypeSet, files: Sequence[str]) -> tuple[Prototype, ...]:
    """Return prototypes of one class as people find them; `mined.ids` are positions among its files."""
    columns = (mined.ids.tolist(), mined.log_r.tolist(), mined.gap.tolist())
    return tuple(Prototype(i, files[i], log_r, gap) for i, log_r, gap in zip(*columns, strict=True))


def _with_pictures(pictures: Tensor | None, images_TCHW: Tensor) -> Tensor | None:
    return None if pictures is None else torch.cat([pictures, thumbnails(images_TCHW)])


def _calibrate(calibration: Calibration | None, kept: Sequence[str]) -> Calibration | None:
    """Return the calibration by the scores that know the new class, with a combined score of them."""
    if calibration is None:
        return None
    scores = {name: calibration.scores[name] for name in kept if name in calibration.scores}
    found = Calibration.fit(scores, calibration.predictions)
    return replace(found, z=calibration.z, labels=calibration.labels, folds=calibration.folds)


@torch.no_grad()
def _widened(model: OpenSetModel, images_NCHW: Tensor, far_N: Tensor | None) -> AnyTypicality | None:
    """Return the typicality with the new class. That of layers, which knows no classes, stays if it fits."""
    if not isinstance(model.typicality, ClassTypicality):
        return model.typicality if _is_typical(model, far_N) else None
    network = model.classifier
    batches = torch.split(images_NCHW, batch_for(network))
    found = [network.embed_observed(batch.to(network.mean.device))[2][FEATURES] for batch in batches]
    return model.typicality.with_class(torch.cat(found))


def _is_typical(model: OpenSetModel, far_N: Tensor | None) -> bool:
    """Return whether the new class is so like the training images that it is not rejected for it."""
    return far_N is None or float((far_N <= model.far_limit()).double().mean()) > 1 - ATYPICAL


def _keep_rule(before: OpenSetModel, after: OpenSetModel, samples: int) -> Rule:
    """Return the same rule if the model still has its score, else one by the distance."""
    rule, score = before.rule, before.rule.score
    if score != "distance" and (score not in after.score_names or samples < NEIGHBORS):
        return replace(rule, score="distance", threshold=None)
    # A threshold on the scale of three scores means nothing on that of two.
    same = score != "combined" or describe_rule(before) == describe_rule(replace(after, rule=rule))
    return rule if same else replace(rule, threshold=None)


def describe_rule(model: OpenSetModel) -> str:
    """Return the rule in words: its score, what it consists of, and a fixed threshold if it has one."""
    rule, scale = model.rule, model.calibration.scale if model.calibration else None
    parts = f" of {', '.join(scale.quantiles)}" if scale and rule.score == "combined" else ""
    threshold = "" if rule.threshold is None else f" above {rule.threshold:g}"
    return rule.score + parts + threshold + (f", with {TYPICALITY}" if model.penalty else "")


def _added_logits(model: OpenSetModel, z_ND: Tensor, logits_NK: Tensor) -> Tensor:
    """Return what replaces the logits of the added classes, float64 (N, K - K0)."""
    assert model.reference is not None
    own = logits_NK.shape[1]
    distances_NK = class_distances(z_ND, model.reference)
    nearer_NA = distances_NK[:, :own].amin(dim=1, keepdim=True) - distances_NK[:, own:]
    return logits_NK.amax(dim=1, keepdim=True) + _logits_per_distance(model, model.reference) * nearer_NA


def _logits_per_distance(model: OpenSetModel, reference: Reference) -> Tensor:
    """Return the lead of the best class over the second in logits, per lead in distances.

    Both are medians over trained prototypes.
    """
    own = len(model.classifier.spec.class_names)
    prototypes_PD = reference.prototypes_KTD[:own][reference.mask_KT[:own]].cpu()
    z_PD = prototypes_PD[torch.from_numpy(evenly(len(prototypes_PD), _PROBED))]
    lead_P = model.logits(z_PD).double().topk(2).values.diff(dim=1).neg()
    nearer_P = class_distances(z_PD, reference)[:, :own].topk(2, largest=False).values.diff(dim=1)
    return lead_P.median() / nearer_P.median().clamp(min=torch.finfo(nearer_P.dtype).eps)


def _measure(before: OpenSetModel, after: OpenSetModel, prototypes: int) -> AddedClass:
    name, calibration = after.class_names[-1], before.calibration
    rules = describe_rule(before), describe_rule(after)
    if calibration is None or calibration.z is None:
        return AddedClass(name, prototypes, 0, 0, None, None, *rules)
    z_ND, labels_N = calibration.z, calibration.labels
    logits_NK = before.logits(z_ND)
    old_N, new_N = (model.nearest_class(z_ND, logits_NK) for model in (before, after))
    captured = int((new_N == len(before.class_names)).sum())
    old, new = (None if labels_N is None else float((n == labels_N).double().mean()) for n in (old_N, new_N))
    return AddedClass(name, prototypes, len(z_ND), captured, old, new, *rules, calibration.folds > 0)
