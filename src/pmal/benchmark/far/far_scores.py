"""What a model answers for one set of images: every score, and the decision without and with typicality.

B images, N held-out known images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.progress import Advance
from pmal.data.feeding.batches import ImageBatches
from pmal.rejection.calibration.thresholds import conformal_threshold, decide
from pmal.rejection.model import OpenSetModel
from pmal.rejection.training_scores import TrainingScores, all_scores
from pmal.rejection.typicality.penalty import DECISION
from pmal.reporting.metrics import auroc, fpr_at_tpr

BOTH = "both"
"""The near score with the penalty for images unlike all training images."""


@dataclass(frozen=True, eq=False)
class Said:
    """All scores of images by name, and the shares that the stored rule rejects; empty without a rule."""

    scores: Mapping[str, Tensor]
    rejected: Mapping[str, float]

    @property
    def count(self) -> int:
        """Number of images."""
        return len(next(iter(self.scores.values())))


def ask(model: OpenSetModel, training: TrainingScores | None, images: ImageBatches, advance: Advance) -> Said:
    """Return the scores of images and the shares that are rejected.

    Args:
        model: the finished model.
        training: scores that need training images. None: there are none.
        images: in batches.
        advance: called with the number of images done.
    """
    z_BD, logits_BK, far_B = (found.cpu() for found in model.embed(images, advance))
    scores = all_scores(model, training, z_BD, logits_BK, far_B)
    if model.calibration is None:
        return Said(scores, {})
    alone = replace(model, typicality=None)
    answers = {"near": alone.answer_embedded(z_BD, logits_BK)}
    if model.penalty is not None:
        answers[BOTH] = model.answer_embedded(z_BD, logits_BK, far_B)
        scores[BOTH] = scores.pop(DECISION)
    return Said(scores, {kind: _share(one.labels) for kind, one in answers.items()})


def limits(model: OpenSetModel, training: TrainingScores | None) -> dict[str, float]:
    """Return the threshold of every score at which it alone accepts as many images as the rule promises."""
    held = model.calibration
    if held is None:
        return {}
    known = dict(held.scores)
    if training is not None and held.z is not None:
        known = {**training.scores(held.z, model.logits(held.z)), **known}
    return {name: conformal_threshold(score_N, model.rule.accept).value for name, score_N in known.items()}


def figures(known: Said, other: Said, thresholds: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return AUROC, FPR95 and the rejected share of every score, for images that are all unknown.

    Args:
        known: answers for known images.
        other: answers for unknown images.
        thresholds: by score; a score without one has no rejected share.
    """
    found = {}
    for name, score_B in other.scores.items():
        sides = known.scores[name], score_B
        found[name] = {"auroc": auroc(*sides), "fpr95": fpr_at_tpr(*sides)}
        if name in thresholds:
            labels = decide(torch.zeros(len(score_B), dtype=torch.int64), score_B, thresholds[name])
            found[name]["rejected"] = _share(torch.from_numpy(labels))
    return found


def _share(labels_B: Tensor) -> float:
    return float((labels_B < 0).double().mean())
