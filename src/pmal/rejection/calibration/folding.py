"""Calibration of small sets: every part of the training images is held out in turn (cross-conformal).

The model itself learns from all images. A part is scored by a model that was trained on the others, from the
first classifier to the prototypes, so that its images are as new to that model as a new image is to the
final one. The promise is that of such scores: models of nine tenths of the images know a little less, so
that slightly more new known images are accepted than asked for.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._engine.loop import training_set
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.config import RunConfig
from pmal.data.feeding.batches import ChosenImages
from pmal.data.feeding.parts import Part
from pmal.data.splits.task import fold_of_each
from pmal.ensemble.classifier import Classifier
from pmal.mining.prototypes import PrototypeSet
from pmal.rejection.building import build_model
from pmal.rejection.calibration.held_out import Calibration

FOLDS = "folds"
"""The file of a run with the scores, and the folder with trainings that are under way."""
_PREDICTIONS, _SCORE = "predictions", "score."

Found = tuple[Classifier, PrototypeSet | None]
Learn = Callable[[Part, Path, Session], Found]
"""From training images to the final network and its prototypes; unfinished work lies in the folder."""


def calibrate_in_turn(
    learn: Learn, train: Part, folds: int, config: RunConfig, run: Path, session: Session
) -> Calibration:
    """Return the scores of all training images, each by a model that was trained without it.

    They are kept in the run's folder: the same run again computes nothing.
    """
    path = run / FOLDS
    if not has_tensors(path, session.ranks):
        fold_N = fold_of_each(train.samples.labels, folds)
        quiet = replace(session, display=Silent(), log=lambda **event: None)
        parts = []
        with session.display.stage("calibration folds", folds, "folds") as advance:
            for k in sorted({*fold_N.tolist()} - {-1}):
                rest, held_out = chosen(train, fold_N != k), chosen(train, fold_N == k)
                found = learn(rest, path / str(k), quiet)
                parts.append(_scored(found, rest, held_out, config, quiet))
                advance(1)
        _save(path, Calibration.pooled(parts), session)
    return _load(path, session)


def chosen(part: Part, mask_N: NDArray[np.bool_]) -> Part:
    """Return some of the images of a part, as a part of its own."""
    positions = np.flatnonzero(mask_N)
    images = ChosenImages(part.images, torch.from_numpy(positions))
    return Part(part.samples.at(positions), images, ())


def _scored(found: Found, train: Part, held_out: Part, config: RunConfig, quiet: Session) -> Calibration:
    network, prototypes = found
    model = build_model(network, training_set(train, quiet), prototypes, held_out, config, quiet)
    assert model.calibration is not None
    return model.calibration


def _save(path: Path, found: Calibration, session: Session) -> None:
    scores = {f"{_SCORE}{name}": values for name, values in found.scores.items() if name != "combined"}
    tensors = {_PREDICTIONS: found.predictions, **scores}
    save_tensors(path, tensors, {"folds": found.folds}, session.ranks)
    session.ranks.by_first(lambda: shutil.rmtree(path, ignore_errors=True))


def _load(path: Path, session: Session) -> Calibration:
    tensors, about = load_tensors(path, session.ranks)
    scores = {name.removeprefix(_SCORE): t for name, t in tensors.items() if name.startswith(_SCORE)}
    return replace(Calibration.fit(scores, tensors[_PREDICTIONS]), folds=int(about["folds"]))
