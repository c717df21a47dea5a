"""Calibration of small sets: every part of the training images is held out in turn (cross-conformal).

The final model learns from all images. Each part is scored by a model that was trained on the others, from
the first classifier to the prototypes. So its images are as new to that model as a new image is to the
final one. The acceptance rate is promised for these scores. Models of nine tenths of the images know a
little less than the final one, so slightly more new known images are accepted than asked for.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.data.feeding.batches import ChosenImages
from pmal.data.feeding.parts import Part
from pmal.data.splits.task import fold_of_each
from pmal.ensemble.job import Job
from pmal.optimization.learned import Learn, Learned
from pmal.rejection.building import build_model
from pmal.rejection.calibration.held_out import Calibration

FOLDS = "folds"
"""Name of the file with the scores in a run's folder, and of the folder with unfinished trainings."""
_PREDICTIONS, _SCORE = "predictions", "score."


def calibrate_in_turn(learn: Learn, folds: int, job: Job) -> Calibration:
    """Return the scores of all training images, each by a model that was trained without it.

    They are kept in the run's folder, so a rerun computes nothing.

    Args:
        learn: trains the method.
        folds: number of parts.
        job: the run's own.
    """
    path, session = job.folder / FOLDS, job.session
    if not has_tensors(path, session.ranks):
        fold_N = fold_of_each(job.train.samples.labels, folds)
        parts = []
        with session.display.stage("calibration folds", folds, "folds") as advance:
            for k in sorted({*fold_N.tolist()} - {-1}):
                rest = job.on(chosen(job.train, fold_N != k), path / str(k))
                parts.append(_scored(learn(rest), chosen(job.train, fold_N == k), rest))
                advance(1)
        _save(path, Calibration.pooled(parts), session)
    return _load(path, session)


def chosen(part: Part, mask_N: NDArray[np.bool_]) -> Part:
    """Return the images of a part where the mask is true, as a part."""
    positions = np.flatnonzero(mask_N)
    images = ChosenImages(part.images, torch.from_numpy(positions))
    return Part(part.samples.at(positions), images, ())


def _scored(learned: Learned, held_out: Part, job: Job) -> Calibration:
    model = build_model(learned, held_out, job)
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
