"""Trainings that are timed against each other: ours, ours with prototypes, and the plain loop.

Ours is the loop of `pmal fit` itself, an epoch at a time. The images are made up, and the learning rate is
small; neither changes what a step costs.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pmal._engine.loop import Training, TrainingSet
from pmal._engine.loop import _Loop as TrainingLoop  # not train_together(): here an epoch is a turn
from pmal._engine.steps import Objective
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import RunConfig, build
from pmal.data.feeding.batches import ResidentImages
from pmal.data.samples import Pixels
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.classifiers import make_learner, untrained
from pmal.mining.prototypes import PrototypeSet
from pmal.optimization.training import PrototypeTrainingSet, make_prototype_learner
from pmal.speed.reference import Pictures, ReferenceLoop, smooth_pictures
from pmal.speed.timing import Work

PER_CLASS = 10
DISTINCT = 512
"""Different pictures of a set; more are the same again."""
LONG_STEPS = 10**7
"""Steps of a training that is worth compiling, whatever a step takes."""


@dataclass(frozen=True)
class Case:
    """A network, its images, and how long a turn is."""

    encoder: str
    image_size: int
    batch_size: int
    steps: int
    """Per turn."""
    classes: int = 6
    channels: int = 3
    precision: str = "auto"
    augmentation: str = "standard"

    @property
    def images(self) -> int:
        """Images of one turn."""
        return self.batch_size * self.steps

    @property
    def spec(self) -> ClassifierSpec:
        """What the network is made by."""
        names = tuple(f"class {k}" for k in range(self.classes))
        return ClassifierSpec(self.config(1).encoder, names, self.image_size, self.channels)

    def config(self, epochs: int) -> RunConfig:
        """Return the settings of a run of so many epochs."""
        training: dict[str, Any] = {"epochs": epochs, "batch_size": self.batch_size, "learning_rate": 1e-3}
        training["precision"] = self.precision
        data = {"augmentation": self.augmentation}
        return build(RunConfig, {"data": data, "encoder": {"name": self.encoder}, "training": training})

    def pictures(self) -> Pixels:
        """Return the pictures that the epochs go over."""
        return smooth_pictures(min(self.images, DISTINCT), self.image_size, self.channels)

    def labels(self) -> list[int]:
        """Return the classes in turn."""
        return [i % self.classes for i in range(self.images)]

    def network(self, device: torch.device) -> Classifier:
        """Return the untrained network on the device."""
        mean, std = (torch.full((self.channels,), value) for value in (0.5, 0.25))
        return untrained(self.spec, mean, std, seed=0).to(device)

    def describe(self) -> dict[str, Any]:
        """Return what a row of figures says of the case."""
        names = ("encoder", "image_size", "batch_size", "classes", "augmentation")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Plan:
    """How often to measure."""

    warmup: int = 1
    repeats: int = 5
    long: bool = True
    """Choose the step of a long training, which is worth compiling."""

    @property
    def turns(self) -> int:
        """How many turns are run, with those that do not count."""
        return self.warmup + self.repeats


@dataclass
class Contestant:
    """An epoch to be timed, and how many images it puts through the network."""

    epoch: Work
    images: int
    prototypes: int = 0
    """Prototypes in every batch."""
    memory: int | None = None
    """Bytes at the most, on a GPU."""


Maker = Callable[[], Contestant]
Prepare = Callable[[TrainingLoop], None]
"""Chooses how a loop takes its steps, before the first one."""


def set_up(make: Maker, device: torch.device) -> Contestant:
    """Make a contestant and run it once: what compiles is compiled then, and its memory is known."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    contestant = make()
    contestant.epoch()
    if on_gpu:
        torch.cuda.synchronize(device)
        contestant.memory = torch.cuda.max_memory_allocated(device) - before
    return contestant


def as_fit_does(loop: TrainingLoop) -> None:
    """Leave the choice to the loop."""


def plain_training(
    case: Case, pictures: Pixels, plan: Plan, session: Session, prepare: Prepare = as_fit_does
) -> Contestant:
    """Return epochs of the first phase."""
    return Contestant(epoch_of(plain_loop(case, pictures, plan, session), prepare), case.images)


def plain_loop(case: Case, pictures: Pixels, plan: Plan, session: Session, beside: int = 0) -> TrainingLoop:
    """Return the loop of the first phase.

    Args:
        case: what is trained.
        pictures: that it is trained on.
        plan: how often to measure.
        session: of the measuring.
        beside: how many other networks train at the same time.
    """
    data, config = training_data(case, pictures, session.device), case.config(_epochs(case, plan))
    model = case.network(session.device)
    _, objective = make_learner(model, config, flip=True, seed=0)
    return _loop(model, objective, data, config, session, beside)


def pmal_training(
    case: Case, pictures: Pixels, plan: Plan, session: Session, prepare: Prepare = as_fit_does
) -> Contestant:
    """Return epochs of the second phase; prototypes count as images."""
    plain, config = training_data(case, pictures, session.device), case.config(_epochs(case, plan))
    data = PrototypeTrainingSet(plain.images, plain.labels, plain.ids, prototypes_of(case))
    learner = make_prototype_learner(case.network(session.device), data, config, flip=True, seed=0)
    loop = _loop(learner, learner.objective, data, config, session)
    joined = learner.bank.refresh
    return Contestant(epoch_of(loop, prepare), case.images + case.steps * joined, prototypes=joined)


def reference_training(
    case: Case, pictures: Pixels, device: torch.device, dataset: type[Pictures] = Pictures
) -> Contestant:
    """Return epochs of the plain loop. dataset: what makes its pictures into tensors."""
    loop = ReferenceLoop(case.spec, pictures, case.labels(), case.batch_size, device, dataset)
    return Contestant(loop.trainer(), case.images)


def training_data(case: Case, pictures: Pixels, device: torch.device) -> TrainingSet:
    """Return the pictures of a case as a training set on the device."""
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)[torch.arange(case.images) % len(pictures)]
    labels = torch.tensor(case.labels(), device=device)
    return TrainingSet(ResidentImages(images.contiguous(), device), labels, np.arange(case.images))


def prototypes_of(case: Case) -> PrototypeSet:
    """Return the first images of each class."""
    per_class = max(1, min(PER_CLASS, case.images // case.classes))
    ids_KT = torch.arange(case.classes)[:, None] + case.classes * torch.arange(per_class)
    labels_P = torch.arange(case.classes).repeat_interleave(per_class)
    rank_P, zeros = torch.arange(per_class).repeat(case.classes), torch.zeros(ids_KT.numel()).double()
    return PrototypeSet(ids_KT.flatten(), labels_P, zeros, zeros, rank_P, case.classes)


def _epochs(case: Case, plan: Plan) -> int:
    """Return more than are run; so many, if asked for, that the steps are worth compiling."""
    return max(2 * plan.turns, math.ceil(LONG_STEPS / case.steps) if plan.long else 0)


def _loop(
    model: nn.Module,
    objective: Objective,
    data: TrainingSet,
    config: RunConfig,
    session: Session,
    beside: int = 0,
) -> TrainingLoop:
    """Return the loop of `pmal fit`; it never saves."""
    resources = dataclasses.replace(session.resources, checkpoint_seconds=math.inf)
    quiet = Session(session.device, resources, Silent())
    training = Training("bench", model, objective, 0, Path())
    return TrainingLoop(training, data, config.training, quiet, beside)


def epoch_of(loop: TrainingLoop, prepare: Prepare) -> Work:
    """Return a call that trains for an epoch."""

    def epoch() -> None:
        if loop.take_step is None:
            loop.model.train()
            prepare(loop)
        for _ in loop.epoch():
            pass

    return epoch
