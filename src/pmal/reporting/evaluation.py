"""From logits and scores to the figures of a run, each with its interval."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from pmal.reporting.metrics import accuracy_interval, expected_calibration_error, open_set_metrics

Scores = Mapping[str, torch.Tensor]


def evaluate(
    logits_NK: torch.Tensor, labels_N: torch.Tensor, known: Scores, unknown: Scores | None
) -> dict[str, Any]:
    """Closed-set figures, and for every score the open-set figures. Without unknowns, the former alone."""
    correct_N = logits_NK.argmax(dim=1) == labels_N
    confidence_N = logits_NK.double().softmax(dim=1).amax(dim=1)
    figures: dict[str, Any] = {
        "accuracy": asdict(accuracy_interval(correct_N)),
        "calibration_error": expected_calibration_error(confidence_N, correct_N),
        "known_images": len(logits_NK),
        "unknown_images": 0 if unknown is None else len(next(iter(unknown.values()))),
        "scores": {},
    }
    for name, scores_M in (unknown or {}).items():
        estimates = open_set_metrics(correct_N, known[name], scores_M)
        figures["scores"][name] = {metric: asdict(estimate) for metric, estimate in estimates.items()}
    return figures
