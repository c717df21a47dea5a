"""The whole algorithm, top to bottom, one call per stage. Read this first.

    data        images of the known classes, and test images of known and unknown ones
    ensemble    independently seeded classifiers
    geometry    does a training image keep its place among the others from one classifier to the next?
    mining      the few images that stand for each class
    rejection   a score of how unknown an image looks
    reporting   how well known classes are told apart and unknown ones rejected

What takes long leaves its result in the run's folder; a training that is done is loaded, not repeated.
"""

import math
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.runs import open_run, read_config
from pmal._runtime.session import Session, open_session
from pmal.config import RunConfig
from pmal.data.parts import Part, image_shape, open_part
from pmal.data.sources.folder import printable
from pmal.data.sources.registry import open_source
from pmal.data.task import Task, choose_split, make_task
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.classifiers import load_classifiers, rehearse, train_classifiers
from pmal.ensemble.embeddings import embed_images, embed_training_set
from pmal.ensemble.training import TrainingSet
from pmal.errors import UsageError, unknown_name
from pmal.geometry import centered_logits, topology_robustness
from pmal.mining import mine, select_candidates
from pmal.reporting.audit import Audit, write_audit
from pmal.reporting.evaluation import evaluate_logits

METHODS = ("softmax",)


def fit(config: RunConfig, out: Path, session: Session | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet in the folder `out`, and give the metrics back."""
    session = session or open_session()
    if config.method not in METHODS:
        raise unknown_name("method", config.method, METHODS)
    task = open_task(config, session)
    shape = image_shape(task.train, config.data)
    spec = ClassifierSpec(config.encoder, task.class_names, *shape)
    rehearse(spec, config)

    with open_run(out, config) as run:
        session = session.logging_to(run.log)
        train = open_part("train", task.train, shape, session)
        test, unknown = open_test_parts(task, shape, session)
        parts = {"train": train, "test": test, "unknown": unknown}
        write_json(out / "quarantine.json", {k: part.quarantine() for k, part in parts.items() if part})

        classifiers = train_classifiers(
            TrainingSet(train.images, train.labels(session.device), train.samples.ids),
            spec,
            config,
            flip=task.flip,
            folder=out / "classifiers",
            session=session,
        )
        metrics = measure(classifiers[0], test, unknown, describe(config, task))
        write_json(out / "metrics.json", metrics)
        run.seal({"about": metrics["about"], **describe_environment(session.device)})
    return metrics


def evaluate(run: Path, session: Session | None = None) -> dict[str, Any]:
    """The metrics of a finished run, computed anew from its weights and the test images."""
    session = session or open_session()
    config = read_config(run)
    task = open_task(config, session)
    [classifier, *_] = load_classifiers(run / "classifiers", task.class_names, session)
    shape = (classifier.spec.image_size, classifier.spec.channels)
    test, unknown = open_test_parts(task, shape, session)
    return measure(classifier, test, unknown, describe(config, task))


def audit(run: Path, out: Path, session: Session | None = None, *, per_class: int = 10) -> Audit:
    """Rank every training image of a run by robustness; a table and contact sheets go to the folder `out`."""
    session = session or open_session()
    config = read_config(run)
    task = open_task(config, session)
    classifiers = load_classifiers(run / "classifiers", task.class_names, session)
    if len(classifiers) < 2:
        fix = "fit one with --set ensemble.size=2"
        raise UsageError(
            f"{run}: robustness compares 2 classifiers, and this run has {len(classifiers)}: {fix}"
        )
    spec = classifiers[0].spec
    train = open_part("train", task.train, (spec.image_size, spec.channels), session)
    embedded = embed_training_set(classifiers, train, run / "embeddings", session)

    pairs = len(train.samples) ** 2 * math.comb(len(embedded), 2)
    with session.display.stage("robustness", pairs, "pairs") as advance:
        spaces = [(space.z_ND, space.weight_KD) for space in embedded]
        log_r_N = topology_robustness(spaces, device=session.device, report=advance)
    labels_N = torch.from_numpy(train.samples.labels)
    found = Audit(
        samples=train.samples,
        log_r_N=log_r_N,
        candidate_N=select_candidates(log_r_N, labels_N, at_least=per_class),
        predicted_N=embedded[0].logits.argmax(dim=1),
        prototypes=mine(
            log_r_N,
            centered_logits(*spaces[0]),
            labels_N,
            num_classes=len(task.class_names),
            per_class=per_class,
            ids=train.samples.ids,
            class_names=task.class_names,
        ),
    )
    with session.display.stage("contact sheets", len(task.class_names), "classes") as advance:
        write_audit(found, out, advance)
    return found


def open_task(config: RunConfig, session: Session) -> Task:
    """The known and unknown samples of a run; pixels are not read yet."""
    source = open_source(config.data.source, session.resources.data_root)
    return make_task(source, choose_split(source, config.data), config.data)


def open_test_parts(task: Task, shape: tuple[int, int], session: Session) -> tuple[Part, Part | None]:
    test = open_part("test", task.test, shape, session)
    return test, open_part("unknown", task.unknown, shape, session) if task.unknown else None


def measure(
    classifier: Classifier, test: Part, unknown: Part | None, about: dict[str, Any]
) -> dict[str, Any]:
    """Scores of the test images, and the figures that follow from them."""
    _, known_NK = embed_images(classifier, test.images)
    unknown_MK = embed_images(classifier, unknown.images)[1] if unknown else None
    return {"about": about, **evaluate_logits(known_NK, test.labels(known_NK.device), unknown_MK)}


def describe(config: RunConfig, task: Task) -> dict[str, Any]:
    """What stands beside every figure of the run. Of several classifiers, the first is measured."""
    return {
        "source": printable(Path(config.data.source).name),
        "split": task.split.label,
        "known_classes": len(task.class_names),
        "unknown_classes": 0 if task.unknown is None else len(set(task.unknown.labels.tolist())),
        "method": config.method,
        "classifiers": config.ensemble.size,
        "encoder": config.encoder.name,
        "epochs": config.training.epochs,
        "augmentation": config.data.augmentation,
        "seed": config.seed,
    }
