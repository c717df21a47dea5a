"""The scores of held-out samples by a model whose prototypes, neighbors or classes have changed.

A sample that was held out once stays held out: its embedding is kept, so that it can be scored again. If
samples were held out in turn, each by a model of its own, there is no second look: their scores stay.
"""

from dataclasses import replace

import torch
from torch import Tensor

from pmal.rejection.calibration.held_out import EMBEDDINGS_LIMIT, Calibration
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.corrected import Corrected
from pmal.rejection.scores import unknown_scores
from pmal.rejection.typicality.of_layers import TYPICALITY


def calibrated_with(model: OpenSetModel, held: Corrected) -> Calibration | None:
    """Return the calibration on the samples held out so far, scored again if they can be, and new ones."""
    before = model.calibration
    names = _names(model)
    old = None if before is None else rescored(model, before)
    if not len(held.z):
        return old
    logits_NK = model.logits(held.z)
    new = unknown_scores(held.z, logits_NK, model.reference, names=names, head=model.classifier.head)
    new |= {TYPICALITY: held.far.double()} if TYPICALITY in (before.scores if before else ()) else {}
    predictions_N = model.nearest_class(held.z, logits_NK)
    if old is None:
        return Calibration.fit(_cpu(new), predictions_N.cpu()).keeping(held.z, held.labels)
    scores = {name: torch.cat([old.scores[name], values]) for name, values in _cpu(new).items()}
    found = Calibration.fit(scores, torch.cat([old.predictions, predictions_N.cpu()]))
    if old.folds or old.z is None:
        return replace(found, z=old.z, labels=old.labels, folds=old.folds)
    labels_N = None if old.labels is None else torch.cat([old.labels, held.labels])
    whole = replace(found, z=torch.cat([old.z, held.z.to(old.z)]), labels=labels_N)
    return _thinned(whole, EMBEDDINGS_LIMIT)


def rescored(model: OpenSetModel, before: Calibration) -> Calibration:
    """Return the scores of held-out samples by the model as it is now, if their embeddings are kept."""
    held = kept_with_embeddings(before)
    stored = {name: values for name, values in held.scores.items() if name != "combined"}
    if held.folds or held.z is None:
        found = Calibration.fit(stored, held.predictions)
        return replace(found, z=held.z, labels=held.labels, folds=held.folds)
    logits_NK = model.logits(held.z)
    names, head = [name for name in stored if name != TYPICALITY], model.classifier.head
    scores = unknown_scores(held.z, logits_NK, model.reference, names=names, head=head)
    scores |= {TYPICALITY: stored[TYPICALITY]} if TYPICALITY in stored else {}
    predictions_N = model.nearest_class(held.z, logits_NK).cpu()
    return replace(Calibration.fit(_cpu(scores), predictions_N), z=held.z, labels=held.labels)


def kept_with_embeddings(before: Calibration) -> Calibration:
    """Return the calibration on those of its samples whose embeddings are kept: of very many, not all.

    If samples were held out in turn, or no embedding was kept, it comes back as it is.
    """
    if before.folds or before.z is None:
        return before
    count, kept = len(before.predictions), len(before.z)
    step = -(-count // max(kept, 1))
    if len(range(0, count, step)) != kept:  # embeddings of other samples than these
        return replace(before, z=None, labels=None)
    scores = {name: values[::step] for name, values in before.scores.items() if len(values) == count}
    return replace(before, scores=scores, predictions=before.predictions[::step])


def _thinned(held: Calibration, limit: int) -> Calibration:
    """Return the calibration on evenly spaced ones of its samples, at most so many."""
    step = -(-len(held.predictions) // limit)
    if step == 1 or held.z is None:
        return held
    scores = {name: values[::step] for name, values in held.scores.items() if name != "combined"}
    labels_N = None if held.labels is None else held.labels[::step]
    return replace(Calibration.fit(scores, held.predictions[::step]), z=held.z[::step], labels=labels_N)


def _names(model: OpenSetModel) -> list[str]:
    """Return the scores that held-out samples have, but those that are made of others."""
    held = model.calibration.scores if model.calibration else model.score_names
    return [name for name in held if name not in ("combined", TYPICALITY)]


def _cpu(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.cpu() for name, values in scores.items()}
