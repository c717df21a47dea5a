"""The whole algorithm, top to bottom, one call per stage. Read this first.

    data          images of the known classes, and test images of known and unknown ones
    ensemble      independently seeded classifiers
    geometry      does a training image keep its place among the others from one classifier to the next?
    mining        the few images that stand for each class
    optimization  a second training that keeps images near their class's prototypes
    rejection     scores of how unknown an image looks, and the threshold from which on it is
    reporting     how well known classes are told apart and unknown ones rejected
    serving       the finished model as files

Training and mining leave their results in the run's folder; what is done is loaded, not repeated.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pmal._engine.loop import check_batch_size, training_set
from pmal._runtime.files import read_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session, open_session
from pmal.config import RunConfig
from pmal.data.feeding.parts import Part, image_shape
from pmal.data.splits.task import Task, cost_of_few, open_task
from pmal.encoders.choice import check_encoder
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.classifiers import change_head, check_data, load_classifiers, rehearse, train_classifiers
from pmal.ensemble.embeddings import embed_training_set
from pmal.ensemble.finetuning import check_finetuning, finetune_inputs
from pmal.ensemble.forecast import forecast
from pmal.ensemble.heads import check_heads, first_head
from pmal.ensemble.inputs import Inputs, keep_backbone, run_inputs
from pmal.ensemble.length import with_enough_steps
from pmal.errors import DataError, UsageError, unknown_name
from pmal.methods import METHODS
from pmal.mining import PrototypeSet, check_settings
from pmal.mining.run_mining import mine_run
from pmal.optimization.training import optimize_embedding
from pmal.rejection.building import build_model, check_score, for_images
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.calibration.folding import calibrate_in_turn
from pmal.reporting.about import describe
from pmal.reporting.evaluation import check_unchanged, measure_model
from pmal.reporting.frozen import measure_frozen
from pmal.reporting.image_passes import image_passes
from pmal.run.run_folder import RunFolder, open_run, read_config
from pmal.run.stages import check_stages


def fit(
    config: RunConfig,
    out: Path,
    session: Session | None = None,
    *,
    start: str | None = None,
    only: str | None = None,
    task: Task | None = None,
) -> dict[str, Any]:
    """Run every stage that is not done yet in the folder `out`, and give the metrics back.

    start: do this stage and all after it anew, with other settings of theirs where the config has them.
    only: stop after this stage; those before it must be done. Before the last there are no metrics: {}.
    task: data from elsewhere than `config.data`. One without a test part has no metrics: {}.
    """
    session = session or open_session()
    ranks = session.ranks
    check_config(config)
    check_batch_size(config.training, ranks)
    ranks.by_first(lambda: check_stages(config, out, start, only))
    task = task or open_task(config.data, session.resources.data_root)
    check_encoder(task.train, config.encoder.name)
    inputs = run_inputs(config, image_shape(task.train, config.data), out, session, write=True)
    rehearse(inputs.spec(config.encoder, task.class_names, first_head(config)), config)
    config, length = with_enough_steps(config, len(task.train))
    time_needed = forecast(config, task, inputs, image_passes(config, len(task.class_names)), out, session)
    for note in filter(None, (length, cost_of_few(task, config.rejection.accept), time_needed)):
        session.display.say(note)
    with open_run(out, config, start, ranks) as run:
        for stage in run_stages(config, task, inputs, run, session.logging_to(run.log)):
            if stage == only:
                break
    measured = stage == "evaluation" and task.test is not None
    return ranks.by_first(lambda: dict(read_json(out / "metrics.json"))) if measured else {}


def run_stages(
    config: RunConfig, task: Task, inputs: Inputs, run: RunFolder, session: Session
) -> Iterator[str]:
    """The names of the stages, each when it is done."""
    frozen, inputs = inputs, finetune_inputs(inputs, task, config, run, session)
    out, parts = run.path, inputs.open_parts(task, session)
    data = training_set(parts["train"], session)
    spec = inputs.spec(config.encoder, task.class_names, first_head(config))

    run.begin("classifiers")
    keep_backbone(frozen, config, out, session)
    check_data(out / "classifiers", config.classifiers, spec, data, session.ranks)
    run.write("quarantine.json", {name: part.quarantine() for name, part in parts.items()})
    learned = yield from learn(config, parts["train"], spec, task.flip, run, session)
    run.begin("calibration")
    held_out, in_turn, again = parts.get("held out"), None, partial(learn_part, config, spec, task.flip)
    if task.folds:
        in_turn = calibrate_in_turn(again, parts["train"], task.folds, config, out, session)
    model = build_model(learned.network, data, learned.prototypes, held_out, config, session, in_turn)
    if inputs.backbone is not None:
        model = for_images(model, inputs.backbone, parts["train"].samples)
    session.ranks.by_first(lambda: save_model(out / "model", model))
    yield "calibration"
    run.begin("evaluation")
    if "test" in parts:
        softmax = learned.first if METHODS[config.method].second else None
        figures = measure_model(model, softmax, parts, session.display, session.ranks)
        figures |= measure_frozen(again, frozen, task, config, out, session)
        run.write("metrics.json", describe(config, task) | figures)
    about = {"images": task.drawn(), "processes": session.ranks.size, **describe_environment(session.device)}
    run.seal({**describe(config, task), **about})
    yield "evaluation"


@dataclass(frozen=True)
class Learned:
    """What training leaves: the first classifier, the final network, and its prototypes."""

    first: Classifier
    network: Classifier
    prototypes: PrototypeSet | None = None


def learn(
    config: RunConfig, train: Part, spec: ClassifierSpec, flip: bool, run: RunFolder, session: Session
) -> Generator[str, None, Learned]:
    """From training images to the final network: the names of the stages, each when it is done."""
    data, out, method = training_set(train, session), run.path, METHODS[config.method]
    classifiers = train_classifiers(
        data, spec, config, flip=flip, folder=out / "classifiers", session=session
    )
    first, folder = classifiers[0], out / "optimization"
    yield "classifiers"
    if method.mines:
        run.begin("embeddings")
        embedded = embed_training_set(classifiers, train, out / "embeddings", session)
        yield "embeddings"
        run.begin("mining")
        prototypes = mine_run(embedded, train, config, out / "prototypes", session)
        yield "mining"
        run.begin("optimization")
        network = optimize_embedding(
            first, data, prototypes, config, flip=flip, folder=folder, session=session
        )
        yield "optimization"
        return Learned(first, network, prototypes)
    if method.final:
        run.begin("optimization")
        network = change_head(first, data, config, flip=flip, folder=folder, session=session)
        yield "optimization"
        return Learned(first, network)
    return Learned(first, first)


def learn_part(
    config: RunConfig, spec: ClassifierSpec, flip: bool, train: Part, folder: Path, session: Session
) -> tuple[Classifier, PrototypeSet | None]:
    """The final network and its prototypes, learned from some of the training images alone."""
    stages = learn(config, train, spec, flip, RunFolder(folder, config, None, session.ranks), session)
    while True:
        try:
            next(stages)
        except StopIteration as done:
            return done.value.network, done.value.prototypes


def evaluate(run: Path, session: Session | None = None) -> dict[str, Any]:
    """The metrics of a finished run, computed anew from its model and the images. Nothing is written."""
    session = session or open_session()
    config = read_config(run)
    if not (run / "model").is_dir():
        raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
    model = load_model(run / "model", session.device)
    task = open_task(config.data, session.resources.data_root)
    measured = check_unchanged(run, task, model.classifier.spec.class_names)
    softmax = None
    if METHODS[config.method].second:
        softmax = load_classifiers(run / "classifiers", 1, task.class_names, session)[0]
    inputs = run_inputs(config, model.classifier.spec.image_shape, run, session)
    parts = inputs.open_parts(measured, session)
    return describe(config, task) | measure_model(model, softmax, parts, session.display)


def check_config(config: RunConfig) -> None:
    if config.method not in METHODS:
        raise unknown_name("method", config.method, METHODS)
    if METHODS[config.method].mines and config.classifiers < 2:
        raise UsageError(f"method {config.method} compares classifiers: set ensemble.size to 2 or more")
    for check in (check_heads, check_score, check_finetuning):
        check(config)
    check_settings(config.mining)
