"""Files in, answers out: image folders of any length, and whoever cannot be read does not stop the others.

B images, T prototypes of the class that has most.
"""

import contextlib
import math
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmal._runtime.progress import Advance
from pmal._runtime.runs import CONFIG
from pmal._runtime.session import Session
from pmal.data.loading import load_images
from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore, list_files, printable
from pmal.data.task import UNKNOWN
from pmal.errors import DataError, UsageError, unknown_name
from pmal.rejection.model import Answers, OpenSetModel, Rule
from pmal.serving.bundle_folder import RECORD

TOP = 3
BLOCK_IMAGES, BLOCK_BYTES = 1024, 1 << 28
"""What is decoded at a time: enough for every core to have work, little enough to fit beside any model."""


@dataclass(frozen=True)
class BadFile:
    """What was to be answered and cannot be, and why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ReadBlock:
    """Images uint8 (B, C, H, W) of the B files that could be read, and the files that could not."""

    files: list[str]
    images: torch.Tensor
    bad: list[BadFile]


def find_model(run: Path) -> Path:
    """The bundle of a run folder; a bundle folder is its own."""
    fix = "name the folder that `pmal fit` left"
    if not run.is_dir():
        raise DataError(f"{run}: {'not a folder' if run.exists() else 'no such folder'}: {fix}")
    if (run / "model").is_dir():
        return run / "model"
    if (run / CONFIG).exists():
        raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
    if not (run / RECORD).exists():
        raise DataError(f"{run}: neither a run folder nor a model: {fix}")
    return run


def check_takes_images(model: OpenSetModel) -> None:
    """Refuse a model of embeddings, which have no files that could be decoded."""
    if model.classifier.spec.encoder.name == "precomputed":
        raise UsageError("this model takes embeddings, not images: use predict of OpenSetClassifier")


def with_rule(
    model: OpenSetModel,
    *,
    score: str | None = None,
    accept: float | None = None,
    per_class: bool | None = None,
    threshold: float | None = None,
) -> OpenSetModel:
    """The model with another rule of rejection; None keeps what is stored. Refused where it cannot decide."""
    rule = change_rule(model.rule, score, accept, per_class, threshold)
    model = replace(model, rule=rule)
    if rule.score not in model.score_names:
        raise unknown_name("score of this model", rule.score, model.score_names)
    model.limits()
    return model


def change_rule(
    rule: Rule, score: str | None, accept: float | None, per_class: bool | None, threshold: float | None
) -> Rule:
    """A threshold is a number on the scale of one score: a change of what it stands for drops it.

    >>> change_rule(Rule("distance", threshold=0.3), "logit", None, None, None)
    Rule(score='logit', accept=0.95, per_class=False, threshold=None)
    """
    score = score or rule.score
    if threshold is not None:
        if accept is not None or per_class:
            raise UsageError("--threshold is the limit of all classes: leave out --accept and --per-class")
        if math.isnan(threshold):
            raise UsageError("--threshold nan: pass a number")
        return replace(rule, score=score, per_class=False, threshold=threshold)
    kept = score == rule.score and accept is None and not per_class
    return Rule(
        score,
        rule.accept if accept is None else accept,
        rule.per_class if per_class is None else per_class,
        rule.threshold if kept else None,
    )


def find_files(paths: Sequence[str]) -> tuple[list[str], list[BadFile]]:
    """The files named, those in the folders named (as a data set of class folders has them), and the rest."""
    files: list[str] = []
    bad = []
    for path in paths:
        try:
            files += _files_at(path)
        except OSError as error:
            bad.append(BadFile(path, error.strerror or str(error)))
        except DataError as error:
            bad.append(BadFile(path, str(error)))
    return files, bad


def read_images(
    files: Sequence[str], size: int, channels: int, advance: Advance | None = None
) -> Iterator[ReadBlock]:
    """Decode the files block by block to (channels, size, size)."""
    count = max(1, min(BLOCK_IMAGES, BLOCK_BYTES // (channels * size**2)))
    for start in range(0, len(files), count):
        block = files[start : start + count]
        samples = Samples.whole(FileStore("", block), np.zeros(len(block), np.int64), ("",))
        loaded = load_images(samples, size=size, channels=channels, advance=advance)
        bad = [BadFile(block[sample.id], sample.reason) for sample in loaded.quarantine]
        yield ReadBlock([block[row] for row in loaded.samples.ids.tolist()], loaded.images, bad)


def describe_answers(
    model: OpenSetModel, answers: Answers, names: Sequence[str], top: int = TOP
) -> list[dict[str, Any]]:
    """What a model says about each image, ready for JSON. Numbers that are not finite are text there."""
    rows = zip(
        map(unicode_name, names),
        answers.labels.tolist(),
        answers.nearest.tolist(),
        answers.score.tolist(),
        answers.limits.tolist(),
        _probabilities(answers),
        _top_prototypes(model, answers, top),
        strict=True,
    )
    return [
        {
            "image": name,
            "class": model.class_names[label] if label >= 0 else UNKNOWN,
            "known": label >= 0,
            "nearest": model.class_names[nearest],
            "score": json_number(score),
            "threshold": json_number(limit),
            "probability": probability,
            "prototypes": prototypes,
        }
        for name, label, nearest, score, limit, probability, prototypes in rows
    ]


def model_header(model: OpenSetModel, folder: Path) -> dict[str, Any]:
    """What stands beside the answers: whose they are, and by which rule."""
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
    model: OpenSetModel, files: Sequence[str], errors: list[BadFile], session: Session, top: int = TOP
) -> Generator[list[dict[str, Any]], None, None]:
    """Answers block by block, in the order of the files; those that cannot be read are added to `errors`."""
    spec = model.classifier.spec
    with session.display.stage("predicting", len(files), "images") as advance:
        for block in read_images(files, spec.image_size, spec.channels, advance):
            errors += block.bad
            if block.files:
                yield describe_answers(model, model.answer(block.images), block.files, top)


def unicode_name(path: str) -> str:
    """The path itself, unless its bytes are no text that could be written anywhere."""
    with contextlib.suppress(UnicodeEncodeError):
        path.encode()
        return path
    return printable(path)


def json_number(value: float) -> float | str:
    """JSON has no infinite numbers: they become text."""
    return value if math.isfinite(value) else str(value)


def _files_at(path: str) -> list[str]:
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return [path]
    if not stat.S_ISDIR(mode):
        raise DataError("neither a file nor a folder")
    found = [os.path.join(path, file) for file in list_files(path)]
    if not found:
        raise DataError("no images in this folder")
    return found


def _probabilities(answers: Answers) -> list[float | str | None]:
    """That of the class an image was taken for; an added class has none, because the network lacks it."""
    own = answers.probabilities.shape[1]
    nearest_B = answers.nearest
    found_B = answers.probabilities.gather(1, nearest_B.clamp(max=own - 1)[:, None])[:, 0]
    pairs = zip(found_B.tolist(), nearest_B.tolist(), strict=True)
    return [json_number(value) if nearest < own else None for value, nearest in pairs]


def _top_prototypes(model: OpenSetModel, answers: Answers, top: int) -> list[list[dict[str, Any]]]:
    """Those of the class that each image was taken for, by their share in its answer."""
    classes = answers.nearest.tolist()
    if top < 0:
        raise UsageError(f"top is {top}: ask for 0 or more prototypes")
    if model.reference is None or not model.gallery or not top:
        return [[] for _ in classes]
    weights_BT = model.attention(answers.z, answers.nearest)
    order_BT = weights_BT.argsort(dim=1, descending=True, stable=True)
    found = []
    for k, weights, order in zip(classes, weights_BT.tolist(), order_BT.tolist(), strict=True):
        members = model.gallery[k]
        chosen = [rank for rank in order if rank < len(members)][:top]
        entries = [(members[rank], json_number(weights[rank])) for rank in chosen]
        found.append([{"file": p.file, "id": p.id, "weight": weight} for p, weight in entries])
    return found
