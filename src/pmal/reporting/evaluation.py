"""From a model and test images to the figures of a run, each with its interval."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.files import read_json
from pmal._runtime.processes.ranks import Ranks
from pmal._runtime.progress import Display
from pmal._runtime.session import Session
from pmal.data.feeding.parts import Part
from pmal.data.samples import evenly
from pmal.data.splits.task import Task
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.job import Job
from pmal.errors import DataError
from pmal.optimization.learned import Learn
from pmal.rejection.building import build_model
from pmal.rejection.model import Answers, OpenSetModel, Rule
from pmal.rejection.training_scores import (
    BANK_LIMIT,
    TrainingScores,
    all_scores,
    is_scored,
    kept_embeddings,
    training_embeddings,
)
from pmal.rejection.typicality.of_layers import fit_typicality
from pmal.reporting.metrics import accuracy_interval, expected_calibration_error, macro_f1, open_set_metrics

Scores = Mapping[str, torch.Tensor]
Embedded = tuple[torch.Tensor, ...]
"""z_ND, logits_NK and typicality scores."""
TESTED = ("test", "unknown")
"""The parts that are tested."""
FROZEN = ("accuracy", "scores", "decision")
"""Figures without fine-tuning that are shown next to those with it."""


def check_unchanged(run: Path, task: Task, class_names: tuple[str, ...]) -> Task:
    """Return the task that is measured: its test images, and the training images that scores need.

    Args:
        run: the run's folder.
        task: what the data contain now.
        class_names: the classes that the model knows.

    Raises:
        DataError: the data changed, so that images the run learned may be among the test images.
    """
    if task.class_names != class_names or task.test is None:
        raise DataError(f"{run}: trained on other classes than the data hold now: fit a new run")
    manifest = run / "manifest.json"
    before = read_json(manifest).get("images") if manifest.is_file() else None
    if before and before != task.drawn():
        raise DataError(f"{run}: trained on other images than the data hold now: fit a new run")
    return replace(task, train=task.train.at(evenly(len(task.train), BANK_LIMIT)), held_out=None)


@dataclass(frozen=True)
class Measurement:
    """Figures of a model, and the embeddings that they were computed from."""

    figures: dict[str, Any]
    embedded: list[dict[str, Embedded]]
    """Embeddings by network (the model, then the softmax if there is one) and by part: `test`, `unknown`."""


def measure_model(
    model: OpenSetModel, softmax: Classifier | None, parts: Mapping[str, Part], session: Session
) -> Measurement:
    """Return the figures of the model, and under `softmax` those of the plain classifier.

    Args:
        model: the model that is measured.
        softmax: the first classifier, if the method trains a second time.
        parts: `test`, and `unknown` and `train` if there are any. Without `train`, the only scores that
            compare with training images are those of the model.
        session: device, display and processes.
    """
    display, ranks = session.display, session.ranks
    shown = {name: parts[name].images for name in TESTED if name in parts}
    train = parts.get("train") if "unknown" in parts else None
    models = [model, *([_plain_model(softmax, train, ranks)] if softmax else [])]
    banks = [None if train is None else _bank(one, train, display, ranks) for one in models]
    embedded: list[dict[str, Embedded]] = [{} for _ in models]
    with display.stage("evaluation", sum(map(len, shown.values())) * len(models), "images") as advance:
        # Part by part, so that the processes that decode a streamed part are started once for both networks.
        for name, images in shown.items():
            for one, found in zip(models, embedded, strict=True):
                found[name] = embed_images(
                    one.classifier, images, advance=advance, ranks=ranks, embed=one.embed_batch
                )
    labels_N = parts["test"].labels(torch.device("cpu"))

    def figures_of(i: int) -> dict[str, Any]:
        training = _training_scores(models[i], banks[i], train)
        return _model_figures(models[i], training, labels_N, list(embedded[i].values()))

    figures = ranks.by_first(lambda: figures_of(0))
    if softmax:
        plain = ranks.by_first(lambda: figures_of(1))
        figures["softmax"] = {name: plain[name] for name in ("accuracy", "scores")}
    return Measurement(figures, embedded)


def measure_frozen(learn: Learn, parts: Mapping[str, Part], job: Job) -> dict[str, Any]:
    """Return, as `frozen`, accuracy, scores and decision of a model on features of the frozen network.

    It is trained, calibrated and tested on the same images as the run's model. Unfinished work is resumed.

    Args:
        learn: trains the method, as the run did.
        parts: the images of the run by part, as the frozen network sees them.
        job: the run's own.
    """
    frozen = job.on(parts["train"], job.folder / "frozen")
    model = build_model(learn(frozen), parts.get("held out"), frozen)
    figures = measure_model(model, None, parts, frozen.session).figures
    return {"frozen": {name: figures[name] for name in FROZEN if name in figures}}


def _plain_model(softmax: Classifier, train: Part | None, ranks: Ranks) -> OpenSetModel:
    """Return the first classifier as a model, so that it has every score that the other one has."""
    labels_N = train.labels(torch.device("cpu")) if train else None
    typicality = fit_typicality(softmax, train.images, labels_N, ranks=ranks) if train else None
    return OpenSetModel(softmax, softmax.spec.class_names, Rule("logit"), typicality=typicality)


def _bank(model: OpenSetModel, train: Part, display: Display, ranks: Ranks) -> torch.Tensor | None:
    """Return embeddings of training images, if the model is scored by them."""
    if not is_scored(model.classifier):
        return None
    kept_ND = kept_embeddings(model.reference, len(train.samples))
    if kept_ND is not None:
        return kept_ND
    total = min(len(train.samples), BANK_LIMIT)
    with display.stage("embedding training images", total, "images") as advance:
        return training_embeddings(model.classifier, train.images, advance, ranks)


def _training_scores(
    model: OpenSetModel, bank_ND: torch.Tensor | None, train: Part | None
) -> TrainingScores | None:
    if bank_ND is None or train is None:
        return None
    return TrainingScores.fit(bank_ND, train.labels(torch.device("cpu")), model.classifier.head)


def _model_figures(
    model: OpenSetModel,
    training: TrainingScores | None,
    labels_N: torch.Tensor,
    embedded: list[Embedded],
) -> dict[str, Any]:
    """Return the figures of embedded test images: the known ones, and the unknown ones if there are any."""
    known, *unknown = [all_scores(model, training, *one) for one in embedded]
    figures = evaluate(embedded[0][1], labels_N, known, unknown[0] if unknown else None)
    if model.calibration:
        answers = [model.answer_embedded(*one) for one in embedded]
        figures["decision"] = _decisions(model, labels_N, answers[0], answers[1] if unknown else None)
    return figures


def evaluate(
    logits_NK: torch.Tensor, labels_N: torch.Tensor, known: Scores, unknown: Scores | None
) -> dict[str, Any]:
    """Return closed-set figures, and the open-set figures of every score if there are unknown images.

    Args:
        logits_NK: of known test images.
        labels_N: their classes.
        known: their scores, by name.
        unknown: scores of unknown test images. None: there are none.
    """
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
    """Return what the stored threshold decides for the test images."""
    guaranteed, note = model.guarantee()
    found: dict[str, Any] = {
        "score": model.rule.score,
        "accept": model.rule.accept,
        "per_class": model.rule.per_class,
        "guaranteed": guaranteed,
        "note": note,
        "rejects": bool(model.limits().isfinite().any()),
        "known_accepted": float((known.labels >= 0).double().mean()),
    }
    if unknown is not None:
        truth = torch.cat([labels_N, torch.full_like(unknown.labels, -1)])
        found["unknown_rejected"] = float((unknown.labels < 0).double().mean())
        found["macro_f1"] = float(macro_f1(truth, torch.cat([known.labels, unknown.labels])))
    return found
