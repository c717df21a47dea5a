"""Samples whose true class somebody told, as a model embeds them. N samples, D channels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pmal.errors import DataError, UsageError
from pmal.rejection.model import OpenSetModel


@dataclass(frozen=True, eq=False)
class Corrected:
    """Samples whose true class somebody told, as the model embeds them."""

    z: Tensor
    """(N, D)"""
    far: Tensor
    """Typicality scores (N,)."""
    labels: Tensor
    """int64 (N,), -1 for unknown."""
    images: Tensor
    """(N, C, H, W), of which those of prototypes are kept as pictures."""
    files: Sequence[str]


def halves(labels_N: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
    """Return which known samples are learned from, and which are held out: of each class every other one.

    They are drawn once and for all, so that no order of the samples decides. A single one is learned from.
    """
    learn_N = torch.zeros(len(labels_N), dtype=torch.bool)
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    for k in sorted(set(labels_N.tolist()) - {-1}) if learns else ():
        learn_N[order_N[labels_N[order_N] == k][::2]] = True
    return learn_N, (labels_N >= 0) & ~learn_N


def chosen(given: Corrected, mask_N: Tensor) -> Corrected:
    """Return the samples under the mask."""
    places = mask_N.nonzero().flatten()
    files = [given.files[i] for i in places.tolist()]
    return Corrected(given.z[places], given.far[places], given.labels[places], given.images[places], files)


def labels_of(model: OpenSetModel, given: Corrected) -> Tensor:
    """Return what a model answers: class numbers, -1 for unknown; one without a threshold rejects nothing."""
    logits_NK = model.logits(given.z)
    if not model.has_threshold:
        return model.nearest_class(given.z, logits_NK).cpu()
    return model.answer_embedded(given.z, logits_NK, given.far).labels


def check_corrected(model: OpenSetModel, given: Corrected) -> None:
    """Refuse samples that nothing can be learned from, and a model that learns nothing."""
    if not len(given.z):
        raise DataError("no corrected samples: pass one or more, with their true classes")
    broken = (~given.z.isfinite().all(dim=1)).nonzero().flatten()
    if len(broken):
        raise DataError(f"{given.files[int(broken[0])]}: its embedding is not finite: leave it out")
    if model.calibration is None and model.reference is None:
        raise UsageError("this model has neither prototypes nor a threshold: nothing in it can be renewed")
