"""Files in, answers out: image folders of any length, and whoever cannot be read does not stop the others."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.session import Session
from pmal.data.samples import Pixels, Vectors
from pmal.errors import DataError, MissingFileError, UsageError
from pmal.rejection.bundle.layout import RECORD
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.bundle.versions import find_version
from pmal.rejection.model import Answers, OpenSetModel, Rule
from pmal.run.run_folder import CONFIG
from pmal.serving.answers.answer_rows import Row, describe_rows, strongest_prototypes, unicode_name
from pmal.serving.answers.image_files import BadFile
from pmal.serving.answers.row_files import answer_paths

TOP = 3


def find_model(run: Path, version: int | None = None) -> Path:
    """Return the bundle of a run folder, or an earlier version of it; a bundle folder is its own."""
    folder = _find_current(run)
    return folder if version is None else find_version(folder, version)


def _find_current(run: Path) -> Path:
    fix = "name the folder that `pmal fit` left"
    if not run.exists():
        raise MissingFileError(f"{run}: no such folder: {fix}")
    if not run.is_dir():
        raise DataError(f"{run}: not a folder: {fix}")
    if (run / "model").is_dir():
        return run / "model"
    if (run / CONFIG).exists():
        raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
    if not (run / RECORD).exists():
        raise DataError(f"{run}: neither a run folder nor a model: {fix}")
    return run


def takes_embeddings(model: OpenSetModel) -> bool:
    """Return whether a model takes rows of another model's embeddings in the place of images."""
    return model.classifier.spec.image_size == 1


def check_takes_images(model: OpenSetModel) -> None:
    """Refuse a model of embeddings if only images will do."""
    if takes_embeddings(model):
        raise UsageError("this model takes embeddings, not images: name a run that was fitted on images")


def open_model(folder: Path, device: torch.device, half: bool = False, **rule: Any) -> OpenSetModel:
    """Return the model of a bundle, with what is given of another rule (see `with_rule`)."""
    return with_rule(load_model(folder, device, half), **rule)


def with_rule(
    model: OpenSetModel,
    *,
    score: str | None = None,
    accept: float | None = None,
    per_class: bool | None = None,
    threshold: float | None = None,
) -> OpenSetModel:
    """Return the model with another rule of rejection; None keeps what is stored.

    Fail if it cannot decide.
    """
    model = replace(model, rule=change_rule(model.rule, score, accept, per_class, threshold))
    model.deciding_score()
    model.limits()
    model.check_statistics()
    return model


def change_rule(
    rule: Rule, score: str | None, accept: float | None, per_class: bool | None, threshold: float | None
) -> Rule:
    """Return another rule.

    A threshold is on the scale of one score: a change of what it stands for drops it.

    >>> change_rule(Rule("distance", threshold=0.3), "logit", None, None, None)
    Rule(score='logit', accept=0.95, per_class=False, threshold=None)
    """
    score = score or rule.score
    if threshold is not None:
        if accept is not None or per_class:
            raise UsageError("threshold is the limit of all classes: leave out accept and per-class")
        if math.isnan(threshold):
            raise UsageError("threshold nan: pass a number")
        return replace(rule, score=score, per_class=False, threshold=threshold)
    kept = score == rule.score and accept is None and not per_class
    return Rule(
        score,
        rule.accept if accept is None else accept,
        rule.per_class if per_class is None else per_class,
        rule.threshold if kept else None,
    )


def describe_answers(
    model: OpenSetModel, answers: Answers, names: Sequence[str], top: int = TOP
) -> list[dict[str, Any]]:
    """Return what a model says about each image, ready for JSON."""
    columns = (answers.labels, answers.nearest, answers.score, answers.limits)
    rows = zip(
        names,
        *(column.tolist() for column in columns),
        _probabilities(answers),
        *(column.tolist() for column in (answers.far, answers.far_limits, answers.p_values)),
        _top_prototypes(model, answers, top),
        strict=True,
    )
    return describe_rows(model.class_names, map(Row._make, rows))


def model_header(model: OpenSetModel, folder: Path) -> dict[str, Any]:
    """Return what is shown next to the answers: whose they are, and by which rule."""
    rule = model.rule
    return {
        "folder": unicode_name(str(folder)),
        "classes": len(model.class_names),
        "score": rule.score,
        "accept": rule.accept if rule.threshold is None else None,
        "per_class": rule.per_class if rule.threshold is None else False,
        "note": model.guarantee()[1],
    }


def answer_files(
    model: OpenSetModel, paths: Sequence[str], errors: list[BadFile], session: Session, top: int = TOP
) -> Generator[list[dict[str, Any]], None, None]:
    """Yield answers block by block, in the order of the files; what cannot be read is added to `errors`.

    Args:
        model: that answers.
        paths: image files and folders of them, or files of embeddings, as the model takes either.
        errors: what could not be read.
        session: its display shows the progress.
        top: how many prototypes each answer names.
    """

    def answer(images: Pixels | Vectors, names: list[str]) -> list[dict[str, Any]]:
        return describe_answers(model, model.answer(torch.from_numpy(images)), names, top)

    return answer_paths(paths, model.classifier.spec.image_shape, errors, session.display, answer)


def _probabilities(answers: Answers) -> list[float | None]:
    """Return that of the class an image was taken for; an added class has none: the network lacks it."""
    own = answers.probabilities.shape[1]
    nearest_B = answers.nearest
    found_B = answers.probabilities.gather(1, nearest_B.clamp(max=own - 1)[:, None])[:, 0]
    pairs = zip(found_B.tolist(), nearest_B.tolist(), strict=True)
    return [value if nearest < own else None for value, nearest in pairs]


def _top_prototypes(model: OpenSetModel, answers: Answers, top: int) -> list[list[dict[str, Any]]]:
    """Return those of the class that each image was taken for, by their share in its answer."""
    classes = answers.nearest.tolist()
    if top < 0:
        raise UsageError(f"top is {top}: ask for 0 or more prototypes")
    if model.reference is None or not model.gallery or not top:
        return [[] for _ in classes]
    weights_BT = model.attention(answers.z, answers.nearest)
    members = [[(prototype.file, prototype.id) for prototype in ranked] for ranked in model.gallery]
    return [
        strongest_prototypes(members[k], weights, top)
        for k, weights in zip(classes, weights_BT.tolist(), strict=True)
    ]
