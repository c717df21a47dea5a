"""The report of a run: files and images in, one HTML file out.

What is drawn, and how, is in `pmal.reporting`; here a run's folder and model are read for it. Nothing but the
report is written.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmal._runtime.files import make_folder, read_events, read_json, write_text
from pmal._runtime.processes.ranks import ALONE
from pmal._runtime.session import Session, open_session
from pmal._runtime.text import printable
from pmal.config import RunConfig, to_settings
from pmal.data.feeding.parts import Part
from pmal.data.samples import Samples, evenly
from pmal.data.splits.task import Task, open_task
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.classifiers import load_classifiers
from pmal.ensemble.embeddings import embed_images, stored_embedding
from pmal.ensemble.inputs import run_inputs
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.run_mining import quality_of_images
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.model import Answers, OpenSetModel
from pmal.rejection.scores import unknown_scores
from pmal.rejection.typicality.of_layers import TYPICALITY
from pmal.rejection.typicality.penalty import DECISION
from pmal.reporting.evaluation import TESTED, Embedded
from pmal.reporting.kept_answers import MOST, kept_answers
from pmal.reporting.page.document import Page, Section, check_can_render, render_page
from pmal.reporting.page.numbers.run_numbers import Floats
from pmal.reporting.page.numbers.tsne_layout import layout_method
from pmal.reporting.page.pictures import Album
from pmal.reporting.page.sections.galleries import embedding_section, prototypes_section, robustness_section
from pmal.reporting.page.sections.making import making_section, training_section
from pmal.reporting.page.sections.mistakes import mistakes_section
from pmal.reporting.page.sections.results import (
    classes_section,
    headline,
    results_section,
    summary,
)
from pmal.reporting.page.sections.score_sections import scores_section
from pmal.reporting.page.tested import Answered, Decided, Measured, Mined, RunFacts, plain_names
from pmal.reporting.verdict import judge
from pmal.run.run_folder import CONFIG, check_sums, read_config

NAME = "report.html"
SHEET_BYTES = {"test": 2_500_000, "train": 3_500_000}


def write_report(
    run: Path, session: Session | None = None, *, out: Path | None = None, task: Task | None = None
) -> Path:
    """Write RUN/report.html, or `out`, and return its path. task: as `pipeline.fit` had it, if any."""
    check_can_render()
    # Alone, also after a training that processes shared: the others have ended.
    session = dataclasses.replace(session or open_session(), ranks=ALONE)
    path = out or run / NAME
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the file to write")
    if out is not None or run.is_dir():
        make_folder(path.parent)
    write_text(path, render_page(make_page(run, session, task)))
    return path


def make_page(run: Path, session: Session, task: Task | None = None) -> Page:
    """Return all chapters that this run has something for."""
    if not (run / CONFIG).is_file():
        raise DataError(f"{run}: not a run folder (no {CONFIG} in it): name one that `pmal fit` left")
    if not (run / "model").is_dir():
        raise DataError(f"{run}: not finished: run `pmal fit` again to finish it")
    check_sums(run)
    config, model = read_config(run), load_model(run / "model", session.device)
    task = _readable(run, task or open_task(config.data, session.resources.data_root))
    if task.class_names != model.classifier.spec.class_names:
        raise DataError(f"{run}: trained on other classes than the data hold now: fit a new run")
    if model.added:
        about = f"class {model.class_names[-1]} was added since, and a report shows what was trained"
        raise UsageError(f"{run}: {about}: make that model again by `pmal fit --from calibration`")
    facts = read_facts(run, config, task)
    mined = read_mined(run, config, task, session) if METHODS[config.method].mines else None
    tested = answer_tests(run, config, model, task, session) if task.test is not None else None
    test_parts = [part for part in (tested.known, tested.unknown) if part is not None] if tested else []
    albums = Album.of("test", test_parts), Album.of("train", [task.train])
    sections = [results_section(facts)]
    if tested:
        spaces = _prototype_spaces(run, model, mined) if mined else []
        panels = 2 if tested.softmax else 1
        with session.display.stage("embedding in 2-D", panels, "pictures") as advance:
            sections.append(embedding_section(tested, mined, spaces, facts, albums, layout_method()))
            advance(panels)
        sections += [scores_section(tested, facts), mistakes_section(tested, facts, albums[0])]
        sections.append(classes_section(tested, mined, facts))
    if mined:
        sections += [prototypes_section(mined, facts, albums[1]), robustness_section(mined, facts, albums[1])]
    sections += [training_section(facts), making_section(facts)]
    return _page(facts, [section for section in sections if section], albums)


def read_facts(run: Path, config: RunConfig, task: Task) -> RunFacts:
    """Return what the run's files say about it."""
    unknown, settings = task.unknown, to_settings(config)
    # Where the images lie concerns nobody to whom the report is sent.
    source = printable(Path(config.data.source).name)
    settings["data"] = {**settings["data"], "source": source}
    labels = sorted(set(unknown.labels.tolist())) if unknown is not None else []
    names = plain_names([*task.class_names, *(unknown.class_names[u] for u in labels if unknown is not None)])
    known = len(task.class_names)
    parts = {"train": task.train, "held-out": task.held_out, "test": task.test, "unknown": unknown}
    measured, manifest = run / "metrics.json", run / "manifest.json"
    return RunFacts(
        settings=settings,
        source=source,
        split=task.split.label,
        class_names=names[:known],
        unknown_names=dict(zip(labels, names[known:], strict=True)),
        images={name: len(part) for name, part in parts.items() if part is not None},
        metrics=read_json(measured) if measured.is_file() else None,
        manifest=read_json(manifest) if manifest.is_file() else {},
        log=read_events(run / "log.jsonl"),
    )


def answer_tests(run: Path, config: RunConfig, model: OpenSetModel, task: Task, session: Session) -> Measured:
    """Return what the model and the softmax before it say about the test images."""
    parts = {name: part for name in TESTED if (part := getattr(task, name)) is not None}
    chosen = {name: part.at(evenly(len(part), MOST)) for name, part in parts.items()}

    @functools.cache
    def opened() -> list[Part]:
        inputs = run_inputs(config, model.classifier.spec.image_shape, run, session)
        return [inputs.open(name, part, session) for name, part in chosen.items()]

    kept = kept_answers(run, 0, chosen)
    z, logits, far = _joined(kept or _embed(model.classifier, opened(), session, model.embed_batch))
    softmax = None
    if METHODS[config.method].second:
        kept = kept_answers(run, 1, chosen)
        first = load_classifiers(run / "classifiers", 1, task.class_names, session)[0]
        softmax = _softmax_answers(_joined(kept or _embed(first, opened(), session)))
    answers = model.answer_embedded(z, logits, far) if model.has_threshold else None
    return Measured(
        known=chosen["test"],
        unknown=chosen.get("unknown"),
        model=Answered(
            model.nearest_class(z, logits).numpy(), _arrays(model.scores(z, logits, far)), z.double().numpy()
        ),
        softmax=softmax,
        decided=_decided(answers) if answers else None,
        score=_deciding(model),
        thresholds=_thresholds(model),
        all_images=(len(parts["test"]), len(parts["unknown"]) if "unknown" in parts else 0),
    )


def read_mined(run: Path, config: RunConfig, task: Task, session: Session) -> Mined:
    """Return the quality of every training image, and the run's prototypes."""
    embedded = [stored_embedding(run / "embeddings" / str(u)) for u in range(config.classifiers)]
    samples, rule = task.train, config.mining.quality
    if any(len(space.z_ND) != len(samples) for space in embedded):
        raise DataError(f"{run}: trained on other images than the data hold now: fit a new run")
    quality = quality_of_images(embedded, samples, run, config, session)
    log_r_N, labels_N = quality.of(samples.ids), torch.from_numpy(samples.labels)
    assert log_r_N is not None
    correct_UN = torch.stack([space.logits.argmax(dim=1) == labels_N for space in embedded])
    return Mined(
        samples=samples,
        r_N=log_r_N.exp().numpy(),
        correct_N=correct_UN.double().mean(dim=0).numpy(),
        predicted_N=embedded[0].logits.argmax(dim=1).numpy(),
        prototypes=PrototypeSet.load(run / "prototypes"),
        symbol="r" if rule == "topology" else rule,
    )


def _page(facts: RunFacts, sections: list[Section], albums: tuple[Album, Album]) -> Page:
    unknown = f", {len(facts.unknown_names)} unknown" if facts.unknown_names else ""
    kicker = f"pmal report · method {facts.method} · split {facts.split} · seed {facts.settings['seed']}"
    written = f"pmal {facts.manifest['pmal']}" if "pmal" in facts.manifest else "pmal"
    sheets = [album.sheet(SHEET_BYTES[album.name]) for album in albums]
    return Page(
        title=f"{facts.source}: {len(facts.class_names)} known classes{unknown}",
        kicker=kicker,
        summary=summary(facts),
        stats=headline(facts),
        sections=sections,
        sheets=[sheet for sheet in sheets if sheet],
        foot=f"Written by {written}. This file holds everything it shows and loads nothing.",
        verdict=judge(facts.metrics),
    )


def _readable(run: Path, task: Task) -> Task:
    """Return the task without the images that the run could not read."""
    file = run / "quarantine.json"
    listed: Mapping[str, Any] = read_json(file) if file.is_file() else {}
    bad = {name: [one["id"] for one in part["unreadable"]] for name, part in listed.items()}

    names = {"train": "train", "held_out": "held out", "test": "test", "unknown": "unknown"}
    for field, name in names.items():
        part: Samples | None = getattr(task, field)
        if part is not None and bad.get(name):
            task = dataclasses.replace(task, **{field: part.at(~np.isin(part.ids, bad[name]))})  # type: ignore[arg-type]
    return task


def _embed(
    network: Classifier,
    parts: list[Part],
    session: Session,
    embed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None = None,
) -> list[Embedded]:
    with session.display.stage("test images", sum(len(part.images) for part in parts), "images") as advance:
        return [embed_images(network, part.images, advance=advance, embed=embed) for part in parts]


def _joined(parts: list[Embedded]) -> Embedded:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _softmax_answers(embedded: Embedded) -> Answered:
    z, logits = embedded[:2]
    return Answered(logits.argmax(dim=1).numpy(), _arrays(unknown_scores(z, logits)), z.double().numpy())


def _decided(answers: Answers) -> Decided:
    typical = (answers.far <= answers.far_limits).numpy()
    return Decided(answers.labels.numpy(), answers.p_values.numpy(), typical)


def _arrays(scores: Mapping[str, torch.Tensor]) -> dict[str, Floats]:
    return {name: score.double().numpy() for name, score in scores.items()}


def _thresholds(model: OpenSetModel) -> dict[str, float]:
    """Return one for each score; those of single classes have no place on one axis."""
    rule, calibration = model.rule, model.calibration
    found: dict[str, float] = {}
    if calibration is not None and not rule.per_class:
        found = {name: calibration.threshold(name, rule.accept).value for name in model.score_names}
        found |= {TYPICALITY: model.far_limit(), DECISION: float(model.limits()[0])}
    return found | ({_deciding(model): rule.threshold} if rule.threshold is not None else {})


def _deciding(model: OpenSetModel) -> str:
    return DECISION if model.penalty is not None else model.rule.score


def _prototype_spaces(run: Path, model: OpenSetModel, mined: Mined) -> list[Floats]:
    """Return embeddings of all prototypes, by class and rank: by the first classifier, and by the model."""
    positions = [mined.position_of[i] for i in mined.prototypes.ids.tolist()]
    before = stored_embedding(run / "embeddings" / "0").z_ND[positions]
    assert model.reference is not None
    after = model.reference.prototypes_KTD[model.reference.mask_KT]
    return [before.double().numpy(), after.double().cpu().numpy()]
