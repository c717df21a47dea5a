"""A finished model tested on near and far unknown images, with and without typicality."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session
from pmal.benchmark.far.far_images import MADE
from pmal.benchmark.far.far_scores import Said, ask, figures, limits
from pmal.benchmark.far.far_sets import FAR_SETS, open_far_set
from pmal.benchmark.far.far_text import in_words
from pmal.config import DataConfig, RunConfig
from pmal.data.feeding.batches import ImageBatches, ResidentImages
from pmal.data.feeding.parts import open_part
from pmal.data.samples import Samples, evenly
from pmal.data.splits.task import Task, open_task
from pmal.errors import UsageError
from pmal.rejection.bundle.saving import describe_model, load_model
from pmal.rejection.model import OpenSetModel
from pmal.rejection.training_scores import (
    TrainingScores,
    is_scored,
    kept_embeddings,
    training_embeddings,
)
from pmal.reporting.about import describe
from pmal.reporting.evaluation import check_unchanged
from pmal.run.run_folder import CONFIG, read_config
from pmal.serving.answers.answering import check_takes_images, find_model

MOST = 2000


@dataclass(frozen=True)
class FarOptions:
    """What images a model is tested on."""

    data: str | None = None
    """The set that a bundle without its run was trained on."""
    sets: Sequence[str] = FAR_SETS
    most: int = MOST
    """Images of each far set, evenly spaced."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, the images that it was trained for, and its description."""

    model: OpenSetModel
    task: Task
    about: dict[str, Any]


def measure_runs(folders: Sequence[Path], session: Session, options: FarOptions) -> dict[str, Any]:
    """Return the figures of every run, and how they were measured."""
    subjects = [open_subject(folder, session, options) for folder in folders]  # mistakes show first
    found = []
    for i, subject in enumerate(subjects, start=1):
        session.display.say(f"model {i} of {len(subjects)}: {in_words(subject.about)}")
        found.append(measure_subject(subject, session, options))
    about = {"most": options.most, "sets": list(options.sets)}
    return {"runs": found, "about": about, "manifest": describe_environment(session.device)}


def open_subject(folder: Path, session: Session, options: FarOptions) -> Subject:
    """Return the model of a run folder, of the model folder in it, or of a bundle whose set is given.

    Raises:
        UsageError: the run of the model is missing and `options.data` does not name its set.
    """
    bundle = find_model(folder)
    model = load_model(bundle, session.device)  # a model without a threshold still ranks images
    check_takes_images(model)
    about, spec = {"model": describe_model(bundle)["fingerprint"]}, model.classifier.spec
    run = bundle.parent
    if (run / CONFIG).is_file():
        config = read_config(run)
        task = open_task(config.data, session.resources.data_root)
        task = check_unchanged(run, task, spec.class_names)
        about |= describe(config, task)["about"]
        return Subject(model, task, about)
    if options.data is None:
        raise UsageError(f"{folder}: a model without its run: name the set that it was trained on (--data)")
    data = DataConfig(source=options.data, family="named", known=spec.class_names)
    task = open_task(data, session.resources.data_root)
    about |= describe(RunConfig(data=data), task)["about"]
    names = ("model", "source", "split", "known_classes", "unknown_classes")
    return Subject(model, task, {name: about[name] for name in names} | {"encoder": spec.network_name})


def measure_subject(subject: Subject, session: Session, options: FarOptions) -> dict[str, Any]:
    """Return the share of known images rejected, and a row for every other set."""
    model, task = subject.model, subject.task
    assert task.test is not None
    some = _pixels(task.test.at(evenly(len(task.test), options.most)), model, session)
    training = fit_scores(subject, session)
    known = _ask(subject, training, "known", _images("known", task.test, model, session), session)
    thresholds, rows, left_out = limits(model, training), [], []
    for kind, name, images in shown(subject, some, session, options):
        if images is None:
            left_out.append(name)
            continue
        said = _ask(subject, training, name, images, session)
        row = {"images": name, "kind": kind, "count": said.count, "rejected": dict(said.rejected)}
        rows.append(row | {"scores": figures(known, said, thresholds)})
    first = {"count": known.count, "rejected": dict(known.rejected)}
    decides = {"score": model.rule.score, "accept": model.rule.accept, "left_out": left_out}
    return {"about": subject.about, **decides, "known": first, "far": rows}


def fit_scores(subject: Subject, session: Session) -> TrainingScores | None:
    """Return the scores that need training images. None: the network has none of them.

    A model that keeps the embeddings of its training images needs no images for it.
    """
    network, samples = subject.model.classifier, subject.task.train
    if not is_scored(network):
        return None
    bank_ND = kept_embeddings(subject.model.reference, len(samples))
    if bank_ND is None:
        part = open_part("training images", samples, network.spec.image_shape, session)
        samples = part.samples
        with session.display.stage("embedding training images", len(samples), "images") as advance:
            bank_ND = training_embeddings(network, part.images, advance)
    return TrainingScores.fit(bank_ND, torch.from_numpy(samples.labels), network.head)


def shown(
    subject: Subject, some: Tensor, session: Session, options: FarOptions
) -> Iterator[tuple[str, str, ImageBatches | None]]:
    """Yield kind, name and images of every set, one at a time. Images None: the set is left out.

    Args:
        subject: the model and its task.
        some: known test images, from which others are made.
        session: device, memory and display.
        options: which sets.
    """
    model, task = subject.model, subject.task
    if task.unknown is not None:
        yield "near", "unknown classes", _images("unknown classes", task.unknown, model, session)
    own, known = str(subject.about["source"]), task.class_names
    for name in options.sets:
        samples, line = open_far_set(name, own, known, session.resources.data_root, options.most)
        if line:
            session.display.say(line)
        label = Path(name).name
        yield "set", label, None if samples is None else _images(label, samples, model, session)
    for name, make in MADE.items():
        yield "made", name, ResidentImages(make(some), session.device)


def _pixels(samples: Samples, model: OpenSetModel, session: Session) -> Tensor:
    """Return images in memory, or reject the request if they do not fit."""
    images = _images("images to change", samples, model, session)
    if not isinstance(images, ResidentImages):
        raise UsageError(
            f"{len(images)} images do not fit into memory: lower --most, or raise --memory-limit"
        )
    return images.images.cpu()


def _images(name: str, samples: Samples, model: OpenSetModel, session: Session) -> ImageBatches:
    return open_part(name, samples, model.classifier.spec.image_shape, session).images


def _ask(
    subject: Subject, training: TrainingScores | None, name: str, images: ImageBatches, session: Session
) -> Said:
    with session.display.stage(f"asking about {name}", len(images), "images") as advance:
        return ask(subject.model, training, images, advance)
