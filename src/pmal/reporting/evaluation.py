"""From a model and test images to the figures of a run, each with its interval."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.files import read_json
from pmal._runtime.progress import Display
from pmal._runtime.ranks import ALONE, Ranks
from pmal.data.parts import Part
from pmal.data.samples import Samples
from pmal.data.task import Task
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.errors import DataError
from pmal.rejection.model import Answers, OpenSetModel
from pmal.rejection.scores import unknown_scores
from pmal.reporting.metrics import accuracy_interval, expected_calibration_error, macro_f1, open_set_metrics

Scores = Mapping[str, torch.Tensor]
Embedded = tuple[torch.Tensor, ...]
"""z_ND and logits_NK; of a finished model, its typicality scores, too."""


def check_unchanged(run: Path, task: Task, class_names: tuple[str, ...]) -> Samples:
    """The test images. Refused where the data changed such that images the run learned may be among them."""
    if task.class_names != class_names or task.test is None:
        raise DataError(f"{run}: trained on other classes than the data hold now: fit a new run")
    manifest = run / "manifest.json"
    before = read_json(manifest).get("images") if manifest.is_file() else None
    if before and before != task.drawn():
        raise DataError(f"{run}: trained on other images than the data hold now: fit a new run")
    return task.test


def measure_model(
    model: OpenSetModel,
    softmax: Classifier | None,
    test: Part,
    unknown: Part | None,
    display: Display,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Figures of the model, with those of the plain classifier beside them under `softmax`."""
    parts = [test.images] + ([unknown.images] if unknown else [])
    ways = [(model.classifier, model.embed_batch)] + ([(softmax, softmax.embed)] if softmax else [])
    labels_N = test.labels(torch.device("cpu"))
    with display.stage("evaluation", sum(map(len, parts)) * len(ways), "images") as advance:
        # Part by part: the processes that decode a streamed one are started once for both networks.
        found = [
            [embed_images(one, images, advance=advance, ranks=ranks, embed=embed) for one, embed in ways]
            for images in parts
        ]
        embedded, *plain = [list(of_network) for of_network in zip(*found, strict=True)]
        figures = ranks.by_first(lambda: _model_figures(model, labels_N, embedded))
        if plain:
            figures["softmax"] = ranks.by_first(lambda: _softmax_figures(labels_N, plain[0]))
    return figures


def _model_figures(model: OpenSetModel, labels_N: torch.Tensor, embedded: list[Embedded]) -> dict[str, Any]:
    """Of the embedded test images, and of unknown ones where there are any."""
    known, *unknown = [model.scores(*one) for one in embedded]
    figures = evaluate(embedded[0][1], labels_N, known, unknown[0] if unknown else None)
    if model.calibration:
        answers = [model.answer_embedded(*one) for one in embedded]
        figures["decision"] = _decisions(model, labels_N, answers[0], answers[1] if unknown else None)
    return figures


def _softmax_figures(labels_N: torch.Tensor, embedded: list[Embedded]) -> dict[str, Any]:
    known, *unknown = [unknown_scores(z_ND, logits_NK) for z_ND, logits_NK in embedded]
    found = evaluate(embedded[0][1], labels_N, known, unknown[0] if unknown else None)
    return {name: found[name] for name in ("accuracy", "scores")}


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


def _decisions(
    model: OpenSetModel, labels_N: torch.Tensor, known: Answers, unknown: Answers | None
) -> dict[str, Any]:
    """What the stored threshold does with the test images."""
    guaranteed, note = model.guarantee()
    found: dict[str, Any] = {
        "score": model.rule.score,
        "accept": model.rule.accept,
        "per_class": model.rule.per_class,
        "guaranteed": guaranteed,
        "note": note,
        "known_accepted": float((known.labels >= 0).double().mean()),
    }
    if unknown is not None:
        truth = torch.cat([labels_N, torch.full_like(unknown.labels, -1)])
        found["unknown_rejected"] = float((unknown.labels < 0).double().mean())
        found["macro_f1"] = float(macro_f1(truth, torch.cat([known.labels, unknown.labels])))
    return found
