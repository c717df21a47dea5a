"""From logits and scores to the figures of a run, each with its interval."""

from dataclasses import asdict
from typing import Any

import torch

from pmal.rejection.scores import LOGIT_SCORES
from pmal.reporting.metrics import accuracy_interval, expected_calibration_error, open_set_metrics


def evaluate_logits(
    known_NK: torch.Tensor, labels_N: torch.Tensor, unknown_MK: torch.Tensor | None
) -> dict[str, Any]:
    """Closed-set figures, and for every score the open-set figures. Without unknowns, the former alone."""
    correct_N = known_NK.argmax(dim=1) == labels_N
    confidence_N = known_NK.double().softmax(dim=1).amax(dim=1)
    figures: dict[str, Any] = {
        "accuracy": asdict(accuracy_interval(correct_N)),
        "calibration_error": expected_calibration_error(confidence_N, correct_N),
        "known_images": len(known_NK),
        "unknown_images": 0 if unknown_MK is None else len(unknown_MK),
        "scores": {},
    }
    if unknown_MK is not None:
        for name, score in LOGIT_SCORES.items():
            estimates = open_set_metrics(correct_N, score(known_NK), score(unknown_MK))
            figures["scores"][name] = {metric: asdict(estimate) for metric, estimate in estimates.items()}
    return figures
