"""Another threshold for a finished model, from samples that it was not trained on."""

from dataclasses import replace

from torch import Tensor

from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import best_f1_threshold
from pmal.rejection.model import ADDED_SCORES, OpenSetModel
from pmal.rejection.scores import unknown_scores
from pmal.rejection.typicality.of_layers import TYPICALITY


def recalibrated(
    model: OpenSetModel, z_ND: Tensor, logits_NK: Tensor, far_N: Tensor, labels_N: Tensor | None
) -> OpenSetModel:
    """Return the model with a new threshold from samples that it was not trained on.

    If there are unknown samples (label -1), the threshold is the one of the best macro-F1. Else it is a
    conformal one.

    Args:
        model: the finished model.
        z_ND: embeddings of the samples.
        logits_NK: their logits.
        far_N: their typicality scores.
        labels_N: their classes. None: all samples are known; their classes are not needed.
    """
    nearest_N = model.nearest_class(z_ND, logits_NK)
    if labels_N is not None and (labels_N < 0).any():
        score_N = model.decision(z_ND, logits_NK, far_N)
        best = best_f1_threshold(labels_N, nearest_N, score_N)
        return replace(model, rule=replace(model.rule, threshold=best.value))
    names = ADDED_SCORES if model.added else None
    scores = unknown_scores(z_ND, logits_NK, model.reference, names=names, head=model.classifier.head)
    scores |= {TYPICALITY: far_N} if model.typicality is not None else {}
    held = Calibration.fit(scores, nearest_N)
    rule = replace(model.rule, threshold=None)
    calibrated = replace(model, rule=rule, calibration=held.keeping(z_ND, labels_N))
    calibrated.deciding_score()  # raises: a few samples that are all alike have no combined score
    return calibrated
