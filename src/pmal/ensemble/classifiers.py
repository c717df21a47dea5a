"""U classifiers from U independent random streams of one seed, each in its own folder."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from pmal._engine.loop import Training, TrainingSet, finish, train_together
from pmal._engine.optimizers import learning_rate, make_optimizer
from pmal._engine.steps import EagerStep, Objective
from pmal._runtime.seeds import seeded, stream
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, read_about
from pmal.config import RunConfig, TrainingConfig
from pmal.data.feeding.augmentation import augment
from pmal.data.feeding.batches import is_resident
from pmal.data.feeding.parts import training_statistics
from pmal.encoders.initial import load_initial
from pmal.ensemble.classifier import (
    Classifier,
    ClassifierSpec,
    load_classifier,
    other_data,
    save_classifier,
    with_head,
)
from pmal.ensemble.cost import multiplications
from pmal.ensemble.heads import final_head
from pmal.ensemble.job import Job
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS

FOLDER = "classifiers"
"""The folder of a run that holds its classifiers."""
AT_ONCE = 2
"""Networks that train side by side."""
LARGEST_STEP = 5e10
"""Multiplications of a batch, forward, up to which networks train side by side: larger ones fill a GPU by
themselves. For OSCRI at 32 px and a batch of 128 it is 2.1e10, for WRN-40-4 1.7e11."""


def train_classifiers(job: Job) -> list[Classifier]:
    """Return the classifiers of a job, trained one after another, or small ones on a GPU side by side.

    Those that are done are loaded.
    """
    data, spec, config, session = job.data, job.spec, job.config, job.session
    ranks = session.ranks
    places = {index: job.folder / FOLDER / str(index) for index in range(config.classifiers)}
    statistics = functools.cache(lambda: training_statistics(data.images, session.display))

    def load(index: int) -> Classifier:
        finish(places[index], ranks)
        path = places[index] / "weights"
        return load_classifier(path, session.device, spec.class_names, data.digest, ranks)

    missing = [index for index, place in places.items() if not has_tensors(place / "weights", ranks)]
    classifiers = {index: load(index) for index in places if index not in missing}
    size = networks_at_once(spec, config.training, data, session) if len(missing) > 1 else 1
    for group in (missing[i : i + size] for i in range(0, len(missing), size)):
        seeds = {index: stream(config.seed, "classifier", index) for index in group}
        models = {i: untrained(spec, *statistics(), seeds[i]).to(session.device) for i in group}
        trainings = [
            Training(f"classifier {i}", *make_learner(m, config, job.flip, seeds[i]), seeds[i], places[i])
            for i, m in models.items()
        ]
        title = f"classifier{'s' * (len(group) > 1)} {', '.join(map(str, group))}"
        train_together(title, trainings, data, config.training, session)
        for index, model in models.items():
            save_classifier(places[index] / "weights", model, data.digest, ranks)
        classifiers |= {index: load(index) for index in group}
    return [classifiers[index] for index in places]


def check_data(job: Job) -> None:
    """Refuse other classes or images than the classifiers of a run have learned, be they done or only begun.

    Loading them would refuse as well, but only after the run's folder was written to.
    """
    spec, data = job.spec, job.data

    def check(path: Path) -> None:
        about = read_about(path)
        own, same_names = about.get("classifier"), True
        if isinstance(own, dict):  # a checkpoint has none
            same_names = own.get("class_names") == list(spec.class_names)
        if about and not (same_names and about.get("data") == data.digest):
            raise other_data(path)

    for index in range(job.config.classifiers):
        for name in ("weights", "checkpoint"):
            place = job.folder / FOLDER / str(index) / name
            job.session.ranks.by_first(functools.partial(check, place))


def networks_at_once(
    spec: ClassifierSpec, config: TrainingConfig, data: TrainingSet, session: Session
) -> int:
    """Return how many train side by side: one if more are not faster, or images cannot be read twice."""
    if session.device.type != "cuda" or session.ranks.size > 1 or not is_resident(data.images):
        return 1
    with seeded(0, torch.device("cpu")):
        each = multiplications(Classifier(spec))
    return AT_ONCE if each * min(config.batch_size, len(data.images)) <= LARGEST_STEP else 1


def load_classifiers(
    folder: Path, count: int, class_names: Sequence[str], session: Session, data: str = ""
) -> list[Classifier]:
    """Return the classifiers of a run, in order; `data` is the digest of the training set, if known."""
    paths = [folder / str(index) / "weights" for index in range(count)]
    if not all(has_tensors(path) for path in paths):
        raise DataError(f"{folder.parent}: not finished: run `pmal fit` again to finish it")
    return [load_classifier(path, session.device, class_names, data) for path in paths]


def make_learner(model: Classifier, config: RunConfig, flip: bool, seed: int) -> tuple[nn.Module, Objective]:
    """Return all that is trained, and the loss of the model's head on augmented images."""
    policy, smoothing = config.data.augmentation, config.training.label_smoothing
    with seeded(stream(seed, "training parts"), torch.device("cpu")):
        parts = model.head.training_parts(model)
    if parts is not None:
        parts.to(model.mean.device)

    def objective(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if model.head.views > 1:
            images = torch.cat([images] * model.head.views)
        views = augment(images, policy, model.mean, model.std, flip)
        return model.head.loss(model, views, labels, smoothing, parts)

    return model if parts is None else nn.ModuleList([model, parts]), objective


def change_head(first: Classifier, job: Job) -> Classifier:
    """Return the first classifier with the method's final head, trained on with it if the method says so."""
    data, config, session, folder = job.data, job.config, job.session, job.folder / "optimization"
    place, ranks, seed = folder / "weights", session.ranks, stream(config.seed, "optimization")
    if not has_tensors(place, ranks):
        with seeded(stream(seed, "init"), torch.device("cpu")):
            model = with_head(first, final_head(config))
        if job.method.second:
            network, loss = make_learner(model, config, job.flip, seed)
            training = Training("optimization", network, loss, seed, folder)
            train_together("optimization", [training], data, config.second_training, session)
        save_classifier(place, model, data.digest, ranks)
    finish(folder, ranks)
    return load_classifier(place, session.device, first.spec.class_names, data.digest, ranks)


def rehearse(spec: ClassifierSpec, config: RunConfig) -> None:
    """Run a step on two blank images on the CPU: a wrong setting shows before any data are read."""
    heads = [spec.head, *([final_head(config)] if METHODS[config.method].final else [])]
    learning_rate(config.training.epochs, 1, config.training)
    try:
        for head in heads:
            trial_step(replace(spec, head=head), config)(spec.blank(2))
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        size = f"{spec.encoder.name} at {spec.image_size} px"
        raise UsageError(
            f"{size}: a step of two images does not fit into memory: lower data.image_size"
        ) from None


def trial_step(spec: ClassifierSpec, config: RunConfig) -> Callable[[torch.Tensor], None]:
    """Return a training step of a network that is thrown away, on images of its first class, on the CPU.

    The stream of random numbers stays where it was.
    """
    with seeded(0, torch.device("cpu")):
        model = Classifier(spec)
        if spec.encoder.weights:
            load_initial(model.encoder, Path(spec.encoder.weights))
        network, objective = make_learner(model, config, flip=True, seed=0)
    optimizer = make_optimizer(network, config.training)
    step = EagerStep(objective, optimizer, None, config.training.precision, lambda loss: None)

    def take(images: torch.Tensor) -> None:
        with seeded(0, torch.device("cpu")):
            step(images, torch.zeros(len(images), dtype=torch.int64))

    return take


def untrained(spec: ClassifierSpec, mean_C: torch.Tensor, std_C: torch.Tensor, seed: int) -> Classifier:
    """Return a network with the first weights of this seed, from the CPU: they do not depend on the device.

    Those of the encoder come from a file if the settings name one.
    """
    with seeded(stream(seed, "init"), torch.device("cpu")):
        model = Classifier(spec)
    if spec.encoder.weights:
        load_initial(model.encoder, Path(spec.encoder.weights))
    model.set_normalization(mean_C, std_C)
    return model.use_channels_last()
