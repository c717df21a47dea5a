"""Every training image by its robustness: a table for programs, a contact sheet per class for readers."""

import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from pmal._runtime.files import atomic_path, make_folder, write_text
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal._runtime.text import plain_cell, printable
from pmal.config import RunConfig
from pmal.data.samples import BadImage, Pixels, Samples, VectorStore
from pmal.data.splits.task import open_task
from pmal.ensemble.classifiers import load_classifiers
from pmal.ensemble.embeddings import EmbeddedSet, embed_training_set, stored_embeddings
from pmal.ensemble.inputs import run_inputs
from pmal.ensemble.job import Job
from pmal.errors import UsageError
from pmal.mining.candidates import select_candidates
from pmal.mining.miner import mine_rated
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions
from pmal.mining.run_mining import quality_of_images
from pmal.reporting.contact_sheet import Row, contact_sheet
from pmal.run.run_folder import CONFIG, changed_settings, open_run, read_config

COLUMNS = ("class", "rank", "id", "r", "log_r", "candidate", "prototype", "predicted", "name")
PER_ROW = 10


@dataclass(frozen=True)
class Audit:
    """What mining found about the training samples, by position."""

    samples: Samples
    log_r_N: torch.Tensor
    candidate_N: torch.Tensor
    predicted_N: torch.Tensor
    prototypes: PrototypeSet
    warnings: tuple[str, ...] = ()

    def ranking(self, label: int) -> list[int]:
        """Return the positions of a class, most robust first. Equal ones are in the order of their ids."""
        members = np.flatnonzero(self.samples.labels == label)
        order = np.lexsort((self.samples.ids[members], -self.log_r_N.numpy()[members]))
        positions: list[int] = members[order].tolist()
        return positions


def check_auditable(run: Path, config: RunConfig) -> None:
    """Check that a run can be audited, before it is fitted.

    Raises:
        UsageError: it has one classifier only, or exists with other settings.
    """
    if config.classifiers < 2:
        fix = "fit one with --set ensemble.size=2 and another --out"
        raise UsageError(f"{run}: robustness needs 2 classifiers, and there is 1: {fix}")
    for name, old, new in changed_settings(run, config) if (run / CONFIG).exists() else ():
        fix = f"choose another --out, or audit it as it is with `pmal audit {run}`"
        raise UsageError(f"{run} was fitted with {name} = {old!r}, not {new!r}: {fix}")


def audit_run(run: Path, out: Path, session: Session) -> Audit:
    """Rank every training image of a run by robustness and return the ranking.

    A table and contact sheets are written.

    Args:
        run: the run's folder.
        out: the folder to write to.
        session: device, data and display.
    """
    config = read_config(run)
    check_auditable(run, config)
    task = open_task(config.data, session.resources.data_root)
    folder, count = run / "classifiers", config.classifiers
    [first, *_] = load_classifiers(folder, count, task.class_names, session)
    make_folder(out)
    train = run_inputs(config, first.spec.image_shape, run, session).open("train", task.train, session)
    job = Job(config, train, first.spec, task.flip, run, session)
    classifiers = load_classifiers(folder, count, task.class_names, session, job.data.digest)
    embedded = stored_embeddings(classifiers, job)
    if embedded is None:
        with open_run(run, config):
            embedded = embed_training_set(classifiers, job)
    mined = PrototypeSet.load(run / "prototypes") if has_tensors(run / "prototypes") else None
    found = make_audit(embedded, mined, job)
    with session.display.stage("contact sheets", len(task.class_names), "classes") as advance:
        write_audit(found, out, advance)
    return found


def make_audit(embedded: list[EmbeddedSet], prototypes: PrototypeSet | None, job: Job) -> Audit:
    """Return the robustness of the samples of a run, and the prototypes.

    Args:
        embedded: the samples by each classifier.
        prototypes: those of the run. None: they are mined here, by the rule of the run.
        job: the run's own.
    """
    settings, first, samples = job.config.mining, embedded[0], job.train.samples
    labels_N = torch.from_numpy(samples.labels)
    robust = replace(job.config, mining=replace(settings, quality="topology"))
    quality = quality_of_images(embedded, samples, job.folder, robust, job.session)
    log_r_N = quality.of(samples.ids)
    assert log_r_N is not None
    options, names = QualityOptions(settings, job.config.seed), samples.class_names
    epsilon, per_class = settings.epsilon, settings.per_class
    return Audit(
        samples=samples,
        log_r_N=log_r_N,
        candidate_N=select_candidates(log_r_N, labels_N, epsilon=epsilon, at_least=per_class),
        predicted_N=first.logits.argmax(dim=1),
        prototypes=prototypes
        or mine_rated(first.space, samples.labels, quality, options, ids=samples.ids, class_names=names),
        warnings=quality.notes,
    )


def write_audit(audit: Audit, folder: Path, advance: Callable[[int], None]) -> None:
    """Write audit.csv, and one sheet-*.png per class if the samples have pictures."""
    make_folder(folder)
    write_text(folder / "audit.csv", audit_table(audit))
    if not has_pictures(audit.samples):
        return
    for label, name in enumerate(audit.samples.class_names):
        image = contact_sheet(name, sheet_rows(audit, label))
        with atomic_path(folder / f"sheet-{label:03d}-{_file_word(name)}.png") as temporary:
            image.save(temporary, format="PNG")
        advance(1)


def audit_table(audit: Audit) -> str:
    """Return the table as CSV text, by class and rank within the class."""
    chosen = dict(zip(audit.prototypes.ids.tolist(), audit.prototypes.rank.tolist(), strict=True))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = audit.samples.class_names
    for label, name in enumerate(names):
        for rank, position in enumerate(audit.ranking(label)):
            log_r, sample_id = float(audit.log_r_N[position]), int(audit.samples.ids[position])
            writer.writerow(
                [
                    plain_cell(name),
                    rank,
                    sample_id,
                    f"{np.exp(log_r):.6f}",
                    repr(log_r),
                    int(audit.candidate_N[position]),
                    chosen.get(sample_id, ""),
                    plain_cell(names[int(audit.predicted_N[position])]),
                    plain_cell(audit.samples.name(position)),
                ]
            )
    return text.getvalue()


def sheet_rows(audit: Audit, label: int) -> list[Row]:
    """Return the prototypes in the order of choice, then the most and the least robust images of a class."""
    ranking = audit.ranking(label)
    position_of = {int(audit.samples.ids[position]): position for position in ranking}
    mine = audit.prototypes.ids[audit.prototypes.labels == label].tolist()
    shown = {
        "prototypes": [position_of[sample_id] for sample_id in mine][:PER_ROW],
        "most robust": ranking[:PER_ROW],
        "least robust": ranking[::-1][:PER_ROW],
    }
    return [
        Row(title, [(_picture(audit, p), f"r {float(audit.log_r_N[p].exp()):.2f}") for p in positions])
        for title, positions in shown.items()
    ]


def has_pictures(samples: Samples) -> bool:
    """Return whether there are pictures. Embeddings may come without the images they were made from."""
    return not isinstance(samples.store, VectorStore) or samples.store.pictures is not None


def _picture(audit: Audit, position: int) -> Pixels | str:
    """Return the picture of a sample. For embeddings, the image may be missing; then return its file name."""
    try:
        return audit.samples.read(position)
    except BadImage:
        if not isinstance(audit.samples.store, VectorStore):
            raise
        return printable(os.path.basename(audit.samples.name(position)))


def _file_word(name: str) -> str:
    """Return the class name as part of a file name, with ASCII letters and digits only."""
    word = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return word[:40] or "_"
