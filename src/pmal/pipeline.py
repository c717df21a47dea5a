"""The whole algorithm, top to bottom. Read this first: `learn` is the paper's Figure 2.

    data          images of the known classes, and test images of known and unknown ones
    ensemble      independently seeded classifiers
    geometry      does a training image keep its place among the others from one classifier to the next?
    mining        the few images that stand for each class
    optimization  a second training that keeps images near their class's prototypes
    rejection     scores of how unknown an image looks, and the threshold from which on it is
    reporting     how well known classes are told apart and unknown ones rejected
    serving       the finished model as files

A stage is announced by its name before it is done; `run/stages.py` has their list. Every stage keeps its
result in the run's folder: what is there is loaded, not repeated.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from pmal._engine.loop import check_batch_size
from pmal._runtime.files import read_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import Session, open_session
from pmal.config import RunConfig
from pmal.data.feeding.parts import image_shape
from pmal.data.sources._spool import remove_dead_spools
from pmal.data.splits.task import Task, cost_of_few, open_task
from pmal.encoders.choice import check_encoder
from pmal.ensemble.classifiers import change_head, check_data, load_classifiers, rehearse, train_classifiers
from pmal.ensemble.embeddings import embed_training_set
from pmal.ensemble.finetuning import check_finetuning, finetune_inputs
from pmal.ensemble.forecast import forecast
from pmal.ensemble.heads import check_heads, first_head
from pmal.ensemble.inputs import Inputs, keep_backbone, run_inputs
from pmal.ensemble.job import Job
from pmal.ensemble.length import with_enough_steps
from pmal.errors import DataError, UsageError, unknown_name
from pmal.methods import METHODS
from pmal.mining.miner import check_settings
from pmal.mining.run_mining import choose_prototypes, measure_robustness
from pmal.optimization.learned import Learned
from pmal.optimization.training import optimize_embedding
from pmal.rejection.building import build_model, check_score, for_images
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.calibration.folding import calibrate_in_turn
from pmal.reporting.about import describe
from pmal.reporting.evaluation import check_unchanged, measure_frozen, measure_model
from pmal.reporting.image_passes import image_passes
from pmal.reporting.kept_answers import keep_answers
from pmal.run.run_folder import RunFolder, check_sums, open_run, read_config
from pmal.run.stages import check_stages


def learn(job: Job) -> Generator[str, None, Learned]:
    """Train the method, from images to the final network. Yield the name of each stage but the first."""
    classifiers = train_classifiers(job)
    first = classifiers[0]
    if job.method.mines:
        yield "embeddings"
        spaces = embed_training_set(classifiers, job)
        yield "mining"
        robustness = measure_robustness(spaces, job)
        prototypes = choose_prototypes(spaces, robustness, job)
        yield "optimization"
        return Learned(first, optimize_embedding(first, prototypes, job), prototypes)
    if job.method.final:
        yield "optimization"
        return Learned(first, change_head(first, job))
    return Learned(first, first)


def run_stages(
    config: RunConfig, task: Task, inputs: Inputs, run: RunFolder, session: Session
) -> Iterator[str]:
    """Do all stages of a run, from files to figures. Yield the name of each before it is done."""
    parts = before = inputs.open_parts(task, session)
    yield "classifiers"
    keep_backbone(inputs, config, run.path, session)
    if config.encoder.finetune != "none":
        inputs = finetune_inputs(inputs, task, config, run.path, session)
        parts = inputs.open_parts(task, session)
    spec = inputs.spec(config.encoder, task.class_names, first_head(config))
    job = Job(config, parts["train"], spec, task.flip, run.path, session)
    check_data(job)
    run.write("quarantine.json", {name: part.quarantine() for name, part in parts.items()})
    learned = yield from learn(job)

    yield "calibration"
    in_turn = calibrate_in_turn(learn_all, task.folds, job) if task.folds else None
    model = build_model(learned, parts.get("held out"), job, in_turn)
    if inputs.backbone is not None:
        model = for_images(model, inputs.backbone, job.train.samples)
    session.ranks.by_first(lambda: save_model(run.path / "model", model))

    yield "evaluation"
    if "test" in parts:
        found = measure_model(model, learned.first if job.method.second else None, parts, session)
        frozen = measure_frozen(learn_all, before, job) if parts is not before else {}
        keep_answers(found, parts, run.path, session.ranks)
        run.write("metrics.json", describe(config, task) | found.figures | frozen)
    about = {"images": task.drawn(), "processes": session.ranks.size, **describe_environment(session.device)}
    run.seal({**describe(config, task), **about})


def learn_all(job: Job) -> Learned:
    """Return what `learn` ends with."""
    stages = learn(job)
    while True:
        try:
            next(stages)
        except StopIteration as done:
            learned: Learned = done.value
            return learned


def fit(
    config: RunConfig,
    out: Path,
    session: Session | None = None,
    *,
    start: str | None = None,
    only: str | None = None,
    task: Task | None = None,
) -> dict[str, Any]:
    """Run every stage that is not done yet in the folder `out`, and return the metrics.

    Args:
        config: all settings that decide the result.
        out: the run's folder.
        session: device, display and processes.
        start: redo this stage and all after it, with other settings of theirs if the config has them.
        only: stop after this stage; those before it must be done.
        task: data from elsewhere than `config.data`.

    Returns:
        What metrics.json holds; empty if the run stops earlier or has no test images.
    """
    session = session or open_session()
    ranks = session.ranks
    check_config(config)
    check_batch_size(config.training, ranks)
    ranks.by_first(lambda: check_stages(config, out, start, only))
    remove_dead_spools()
    task = task or open_task(config.data, session.resources.data_root)
    shape = image_shape(task.train, config.data)
    check_encoder(task.train, config.encoder.name)
    inputs = run_inputs(config, shape, out, session, write=True)
    rehearse(inputs.spec(config.encoder, task.class_names, first_head(config)), config)
    config, length = with_enough_steps(config, len(task.train))
    at, passes = None, image_passes(config, len(task.class_names))
    with open_run(out, config, start, ranks) as run:
        time_needed = forecast(config, task, inputs, passes, out, session)
        for note in filter(None, (length, cost_of_few(task, config.rejection.accept), time_needed)):
            session.display.say(note)
        for stage in run_stages(config, task, inputs, run, session.logging_to(run.log)):
            if at is not None and at == only:
                break
            run.begin(stage)
            at = stage
    measured = at == "evaluation" and task.test is not None
    return ranks.by_first(lambda: dict(read_json(out / "metrics.json"))) if measured else {}


def evaluate(run: Path, session: Session | None = None) -> dict[str, Any]:
    """Return the metrics of a finished run, measured again from its model and the images.

    Nothing is written.
    """
    session = session or open_session()
    config = read_config(run)
    if not (run / "model").is_dir():
        raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
    check_sums(run)
    model = load_model(run / "model", session.device)
    task = open_task(config.data, session.resources.data_root)
    measured = check_unchanged(run, task, model.classifier.spec.class_names)
    softmax = None
    if METHODS[config.method].second:
        softmax = load_classifiers(run / "classifiers", 1, task.class_names, session)[0]
    inputs = run_inputs(config, model.classifier.spec.image_shape, run, session)
    parts = inputs.open_parts(measured, session)
    return describe(config, task) | measure_model(model, softmax, parts, session).figures


def check_config(config: RunConfig) -> None:
    """Refuse settings that no data could make right, before anything is read."""
    if config.method not in METHODS:
        raise unknown_name("method", config.method, METHODS)
    if METHODS[config.method].mines and config.classifiers < 2:
        raise UsageError(f"method {config.method} compares classifiers: set ensemble.size to 2 or more")
    check_heads(config)
    check_finetuning(config)
    check_settings(config.mining)
    check_score(config)
