"""U classifiers from U independent random streams of one seed, each in its own folder."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from pmal._runtime.seeds import seeded, stream
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.data.augmentation import augment
from pmal.data.parts import training_statistics
from pmal.ensemble.classifier import (
    Classifier,
    ClassifierSpec,
    load_classifier,
    save_classifier,
    with_head,
)
from pmal.ensemble.heads import final_head
from pmal.ensemble.optimizers import learning_rate, make_optimizer
from pmal.ensemble.steps import EagerStep, Objective
from pmal.ensemble.training import TrainingSet, finish, train
from pmal.errors import DataError
from pmal.methods import METHODS


def train_classifiers(
    data: TrainingSet,
    spec: ClassifierSpec,
    config: RunConfig,
    *,
    flip: bool,
    folder: Path,
    session: Session,
) -> list[Classifier]:
    """Train them one after another; those that are done already are loaded."""
    classifiers, ranks = [], session.ranks
    statistics = functools.cache(lambda: training_statistics(data.images))
    for index in range(config.classifiers):
        place = folder / str(index)
        if not has_tensors(place / "weights", ranks):
            seed = stream(config.seed, "classifier", index)
            model = untrained(spec, *statistics(), seed).to(session.device)
            network, objective = make_learner(model, config, flip, seed)
            name = f"classifier {index}"
            train(name, network, objective, data, config.training, seed=seed, folder=place, session=session)
            save_classifier(place / "weights", model, data.digest, ranks)
        finish(place, ranks)
        classifiers.append(
            load_classifier(place / "weights", session.device, spec.class_names, data.digest, ranks)
        )
    return classifiers


def load_classifiers(
    folder: Path, count: int, class_names: Sequence[str], session: Session, data: str = ""
) -> list[Classifier]:
    """The trained classifiers of a run, in order; `data` is the digest of the training set, where known."""
    paths = [folder / str(index) / "weights" for index in range(count)]
    if not all(has_tensors(path) for path in paths):
        raise DataError(f"{folder.parent}: not finished: run `pmal fit` again to finish it")
    return [load_classifier(path, session.device, class_names, data) for path in paths]


def make_learner(model: Classifier, config: RunConfig, flip: bool, seed: int) -> tuple[nn.Module, Objective]:
    """All that is trained, and the loss of the model's head on augmented images."""
    policy, smoothing = config.data.augmentation, config.training.label_smoothing
    with seeded(stream(seed, "training parts"), torch.device("cpu")):
        parts = model.head.training_parts(model)
    if parts is not None:
        parts.to(model.mean.device)

    def objective(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        views = augment(images, policy, model.mean, model.std, flip)
        return model.head.loss(model, views, labels, smoothing, parts)

    return model if parts is None else nn.ModuleList([model, parts]), objective


def change_head(
    first: Classifier, data: TrainingSet, config: RunConfig, *, flip: bool, folder: Path, session: Session
) -> Classifier:
    """The first classifier with the method's final head, trained on with it where the method says so."""
    place, ranks, seed = folder / "weights", session.ranks, stream(config.seed, "optimization")
    if not has_tensors(place, ranks):
        with seeded(stream(seed, "init"), torch.device("cpu")):
            model = with_head(first, final_head(config))
        if METHODS[config.method].second:
            network, loss = make_learner(model, config, flip, seed)
            steps = config.training
            train("optimization", network, loss, data, steps, seed=seed, folder=folder, session=session)
        save_classifier(place, model, data.digest, ranks)
    finish(folder, ranks)
    return load_classifier(place, session.device, first.spec.class_names, data.digest, ranks)


def rehearse(spec: ClassifierSpec, config: RunConfig) -> None:
    """One step on two blank images on the CPU: a wrong setting shows before any data are read."""
    images = torch.zeros(2, spec.channels, spec.image_size, spec.image_size, dtype=spec.dtype)
    with seeded(0, torch.device("cpu")):
        model = Classifier(spec)
        learning_rate(config.training.epochs, 1, config.training)
        network, objective = make_learner(model, config, flip=True, seed=0)
        optimizer = make_optimizer(network, config.training)
        EagerStep(objective, optimizer, None, config.training.precision, lambda loss: None)(
            images, torch.zeros(2, dtype=torch.int64)
        )


def untrained(spec: ClassifierSpec, mean_C: torch.Tensor, std_C: torch.Tensor, seed: int) -> Classifier:
    """A network with the first weights of this seed. On the CPU, so that they do not depend on the device."""
    with seeded(stream(seed, "init"), torch.device("cpu")):
        model = Classifier(spec)
    model.set_normalization(mean_C, std_C)
    return model.use_channels_last()
