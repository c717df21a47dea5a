"""The whole algorithm, top to bottom, one call per stage. Read this first.

    data          images of the known classes, and test images of known and unknown ones
    ensemble      independently seeded classifiers
    geometry      does a training image keep its place among the others from one classifier to the next?
    mining        the few images that stand for each class
    optimization  a second training that keeps images near their class's prototypes
    rejection     a score of how unknown an image looks
    reporting     how well known classes are told apart and unknown ones rejected

What takes long leaves its result in the run's folder; a training that is done is loaded, not repeated.
"""

from pathlib import Path
from typing import Any

from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.runs import open_run, read_config
from pmal._runtime.session import Session, open_session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig, to_settings
from pmal.data.parts import Part, image_shape, open_part
from pmal.data.sources.folder import printable
from pmal.data.task import Task, open_task
from pmal.ensemble.classifier import Classifier, ClassifierSpec, load_classifier
from pmal.ensemble.classifiers import load_classifiers, rehearse, train_classifiers
from pmal.ensemble.embeddings import EmbeddedSet, count_pairs, embed_images, embed_training_set
from pmal.ensemble.training import TrainingSet, training_set
from pmal.errors import DataError, UsageError, unknown_name
from pmal.mining import PrototypeSet, check_rules, mine_prototypes
from pmal.optimization.learner import embed_prototypes
from pmal.optimization.training import PrototypeTrainingSet, optimize_embedding
from pmal.rejection.scores import Reference, unknown_scores
from pmal.reporting.evaluation import evaluate as evaluate_scores

METHODS = ("pmal", "softmax")


def fit(config: RunConfig, out: Path, session: Session | None = None) -> dict[str, Any]:
    """Run every stage that is not done yet in the folder `out`, and give the metrics back."""
    session = session or open_session()
    check_method(config)
    task = open_task(config.data, session.resources.data_root)
    shape = image_shape(task.train, config.data)
    spec = ClassifierSpec(config.encoder, task.class_names, *shape)
    rehearse(spec, config)

    with open_run(out, config) as run:
        session = session.logging_to(run.log)
        train = open_part("train", task.train, shape, session)
        test, unknown = open_test_parts(task, shape, session)
        parts = {"train": train, "test": test, "unknown": unknown}
        write_json(out / "quarantine.json", {k: part.quarantine() for k, part in parts.items() if part})
        data = training_set(train, session)

        classifiers = train_classifiers(
            data, spec, config, flip=task.flip, folder=out / "classifiers", session=session
        )
        metrics = describe(config, task) | measure(classifiers[0], test, unknown)
        if config.method == "pmal":
            embedded = embed_training_set(classifiers, train, out / "embeddings", session)
            prototypes = mine_run(embedded, train, config, out / "prototypes", session)
            first, folder = classifiers[0], out / "optimization"
            final = optimize_embedding(
                first, data, prototypes, config, flip=task.flip, folder=folder, session=session
            )
            metrics = beside_softmax(metrics, final, prototypes, data, config, test, unknown)
        write_json(out / "metrics.json", metrics)
        run.seal({"about": metrics["about"], **describe_environment(session.device)})
    return metrics


def evaluate(run: Path, session: Session | None = None) -> dict[str, Any]:
    """The metrics of a finished run, computed anew from its weights and the images. Nothing is written."""
    session = session or open_session()
    config = read_config(run)
    task = open_task(config.data, session.resources.data_root)
    classifiers = load_classifiers(run / "classifiers", config.classifiers, task.class_names, session)
    shape = (classifiers[0].spec.image_size, classifiers[0].spec.channels)
    if config.method == "pmal":
        if not has_tensors(run / "optimization" / "weights"):
            raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
        prototypes = PrototypeSet.load(run / "prototypes")
        data = training_set(open_part("train", task.train, shape, session), session)
        digest = PrototypeTrainingSet(data.images, data.labels, data.ids, prototypes).digest
        final = load_classifier(run / "optimization" / "weights", session.device, task.class_names, digest)
    test, unknown = open_test_parts(task, shape, session)
    metrics = describe(config, task) | measure(classifiers[0], test, unknown)
    if config.method == "pmal":
        metrics = beside_softmax(metrics, final, prototypes, data, config, test, unknown)
    return metrics


def mine_run(
    embedded: list[EmbeddedSet], train: Part, config: RunConfig, path: Path, session: Session
) -> PrototypeSet:
    """The prototypes of a run, mined once."""
    if not has_tensors(path) or any(space.fresh for space in embedded):
        settings, samples = config.mining, train.samples
        with session.display.stage("mining", count_pairs(embedded), "pairs") as advance:
            mine_prototypes(
                [space.space for space in embedded],
                samples.labels,
                epsilon=settings.epsilon,
                per_class=settings.per_class,
                quality=settings.quality,
                diversity=settings.diversity,
                topology=settings.topology,
                ids=samples.ids,
                class_names=samples.class_names,
                files=[samples.name(position) for position in range(len(samples))],
                seed=config.seed,
                device=session.device,
                report=advance,
            ).save(path)
    return PrototypeSet.load(path)


def make_reference(
    model: Classifier, data: TrainingSet, prototypes: PrototypeSet, config: RunConfig
) -> Reference:
    """What test images are compared with: the prototypes and all training images as the model sees them."""
    images = PrototypeTrainingSet(data.images, data.labels, data.ids, prototypes).prototype_images()
    prototypes_KTD = embed_prototypes(model, images, prototypes.mask)
    training_ND, _ = embed_images(model, data.images)
    return Reference(prototypes_KTD, prototypes.mask, config.optimization.distance, training_ND)


def open_test_parts(task: Task, shape: tuple[int, int], session: Session) -> tuple[Part, Part | None]:
    test = open_part("test", task.test, shape, session)
    return test, open_part("unknown", task.unknown, shape, session) if task.unknown else None


def beside_softmax(
    softmax: dict[str, Any],
    final: Classifier,
    prototypes: PrototypeSet,
    data: TrainingSet,
    config: RunConfig,
    test: Part,
    unknown: Part | None,
) -> dict[str, Any]:
    """The figures of the final network, with those of the first classifier under `softmax`."""
    reference = make_reference(final, data, prototypes, config)
    figures = {name: softmax[name] for name in ("accuracy", "scores")}
    return softmax | measure(final, test, unknown, reference) | {"softmax": figures}


def measure(
    model: Classifier, test: Part, unknown: Part | None, reference: Reference | None = None
) -> dict[str, Any]:
    """Scores of the test images, and the figures that follow from them."""
    z_ND, logits_NK = embed_images(model, test.images)
    known = unknown_scores(z_ND, logits_NK, reference)
    others = unknown_scores(*embed_images(model, unknown.images), reference) if unknown else None
    return evaluate_scores(logits_NK, test.labels(logits_NK.device), known, others)


def check_method(config: RunConfig) -> None:
    if config.method not in METHODS:
        raise unknown_name("method", config.method, METHODS)
    if config.method == "pmal" and config.classifiers < 2:
        raise UsageError("method pmal compares classifiers: set ensemble.size to 2 or more")
    check_rules(config.mining.quality, config.mining.diversity, config.mining.topology, config.mining.epsilon)


def describe(config: RunConfig, task: Task) -> dict[str, Any]:
    """What stands beside every figure of the run. Of several classifiers, the first is measured."""
    settings = to_settings(config)
    about = {
        "source": printable(Path(config.data.source).name),
        "split": task.split.label,
        "known_classes": len(task.class_names),
        "unknown_classes": 0 if task.unknown is None else len(set(task.unknown.labels.tolist())),
        "method": config.method,
        "classifiers": config.classifiers,
        "encoder": config.encoder.name,
        "epochs": config.training.epochs,
        "augmentation": config.data.augmentation,
        "seed": config.seed,
    }
    phases = ("mining", "optimization") if config.method == "pmal" else ()
    return {"about": about | {name: settings[name] for name in phases}}
