"""A class less, without training: its prototypes, neighbors, held-out samples and logit are taken out.

The neighbors of a model have no labels: those that the model takes for the class go. So do the held-out
samples of the class; the others are scored again if their embeddings are kept.

K classes, K0 of which the network was trained on; T prototypes of the class that has most, D channels.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from pmal._runtime.text import printable
from pmal.ensemble.classifier import Classifier
from pmal.errors import UsageError, unknown_name
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.rescoring import kept_with_embeddings, rescored
from pmal.rejection.scores import Reference
from pmal.rejection.typicality.of_classes import ClassTypicality
from pmal.rejection.typicality.of_layers import AnyTypicality

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class RemovedClass:
    """What went with a class."""

    name: str
    trained: bool
    """Whether the network was trained on it."""
    prototypes: int
    neighbors: int
    held_out: int
    """Held-out samples that set the threshold from now on."""

    def __str__(self) -> str:
        gone = f"{self.prototypes} prototypes and {self.neighbors} neighbors removed"
        return f"class {self.name}: {gone}; {self.held_out} held-out samples set the threshold"


def remove_class(model: OpenSetModel, name: str) -> tuple[OpenSetModel, RemovedClass]:
    """Return the model without a class, and what went with it; its images are unknown from now on.

    Raises:
        UsageError: there is no such class, fewer than two trained ones would be left, or the network's head
            cannot lose a class.
    """
    if name not in model.class_names:
        raise unknown_name("class", name, map(printable, model.class_names))
    k, own = model.class_names.index(name), len(model.classifier.spec.class_names)
    network = _without_logit(model.classifier, k) if k < own else model.classifier
    reference, bank_N = model.reference, torch.zeros(0, dtype=torch.bool)
    prototypes = 0
    if reference is not None:
        bank_ND = reference.training_ND
        bank_N = model.nearest_class(bank_ND, model.logits(bank_ND)).cpu() == k
        prototypes = int(reference.mask_KT[k].sum())
    smaller = replace(
        model,
        classifier=network,
        class_names=_without(model.class_names, k),
        reference=None if reference is None else _reference(reference, k, bank_N),
        gallery=_without(model.gallery, k),
        pictures=_pictures(model, k),
        typicality=_without_mean(model.typicality, k),
        calibration=_without_samples(model.calibration, k),
    )
    held_out = 0
    if smaller.calibration is not None:
        held = rescored(smaller, smaller.calibration)
        smaller, held_out = replace(smaller, calibration=held), len(held.predictions)
    return smaller, RemovedClass(name, k < own, prototypes, int(bank_N.sum()), held_out)


def _without(entries: tuple[Entry, ...], k: int) -> tuple[Entry, ...]:
    return (*entries[:k], *entries[k + 1 :])


def _others(count: int, k: int) -> Tensor:
    return torch.arange(count) != k


def _without_logit(network: Classifier, k: int) -> Classifier:
    """Return a network whose linear head lacks one class; all else of it is shared."""
    spec = network.spec
    if len(spec.class_names) <= 2:
        raise UsageError(f"class '{spec.class_names[k]}' is one of two that were trained: fit another model")
    if spec.head.name != "linear":
        raise UsageError(f"a class of head {spec.head.name} cannot be removed: train without it")
    found = Classifier(replace(spec, class_names=_without(spec.class_names, k))).to(network.mean.device)
    kept_K = _others(len(spec.class_names), k).to(network.mean.device)
    state = network.state_dict()
    state |= {name: values[kept_K] for name, values in state.items() if name.startswith("head.")}
    found = found.use_channels_last() if network.is_channels_last else found
    found.load_state_dict(state)
    return found.eval()


def _reference(reference: Reference, k: int, bank_N: Tensor) -> Reference:
    kept_K = _others(len(reference.mask_KT), k)
    mask_KT = reference.mask_KT[kept_K]
    most = int(mask_KT.sum(dim=1).amax())
    table_KTD = reference.prototypes_KTD[kept_K][:, :most]
    return Reference(table_KTD, mask_KT[:, :most], reference.distance, reference.training_ND[~bank_N])


def _pictures(model: OpenSetModel, k: int) -> Tensor | None:
    """Return the pictures, which lie by class and rank, without those of one class."""
    if model.pictures is None or model.reference is None:
        return model.pictures
    start, end = (int(model.reference.mask_KT[:to].sum()) for to in (k, k + 1))
    return torch.cat([model.pictures[:start], model.pictures[end:]])


def _without_mean(typicality: AnyTypicality | None, k: int) -> AnyTypicality | None:
    """Return the typicality of features without a class; that of layers knows no classes."""
    if not isinstance(typicality, ClassTypicality):
        return typicality
    buffers = dict(typicality.named_buffers())
    means_KF = buffers["means"][_others(len(buffers["means"]), k)]
    return ClassTypicality(buffers["center"], buffers["whitening"], means_KF, buffers["lengths"])


def _without_samples(calibration: Calibration | None, k: int) -> Calibration | None:
    """Return the held-out samples of the other classes: by their labels, or by what they were taken for."""
    if calibration is None:
        return None
    held = kept_with_embeddings(calibration)
    by_label = held.labels is not None and not held.folds
    other_N = (held.labels if by_label and held.labels is not None else held.predictions) != k
    if not other_N.any():
        return None
    scores = {name: values[other_N] for name, values in held.scores.items() if name != "combined"}
    found = Calibration.fit(scores, _renumbered(held.predictions[other_N], k))
    if held.z is None:
        return replace(found, folds=held.folds)
    if held.folds:  # these are the training samples, in another order
        other_N = torch.ones(len(held.z), dtype=torch.bool) if held.labels is None else held.labels != k
    labels_N = None if held.labels is None else _renumbered(held.labels[other_N], k)
    return replace(found, z=held.z[other_N], labels=labels_N, folds=held.folds)


def _renumbered(classes_N: Tensor, k: int) -> Tensor:
    """Return class numbers without k; what was taken for k itself gets a number to be replaced."""
    return (classes_N - (classes_N > k).long()).clamp(min=0)
