"""Mining as a stage of a run: the robustness of every training image, then the prototypes of every class.

Both are kept in the run's folder.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pmal._runtime.progress import Advance, notes_of_warnings
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.data.samples import Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.ensemble.job import Job
from pmal.mining.miner import mine_rated, rate_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions, count_pairs
from pmal.mining.sample_quality import FILE, SampleQuality


def measure_robustness(spaces: Sequence[EmbeddedSet], job: Job) -> SampleQuality:
    """Return log r of every training image, measured once: how well it keeps its place among the others.

    With another `mining.quality` than `topology`, the log of that quality.
    """
    path, session = job.folder / FILE, job.session
    if _is_done(path, spaces, job):
        return SampleQuality.load(path, session.ranks)
    quality = rate_images(spaces, job.train.samples, job.config, session)
    quality.save(path, session.ranks)
    for note in quality.notes:
        session.log(stage="mining", warning=note)
    return quality


def rate_images(
    spaces: Sequence[EmbeddedSet], samples: Samples, config: RunConfig, session: Session
) -> SampleQuality:
    """Return the quality of every sample by the rule of the settings, with what the user was warned of."""
    total, display = count_pairs(len(samples), len(spaces), config.mining), session.display
    with notes_of_warnings(display) as notes, display.stage("robustness", total, "pairs") as advance:
        options = _options(config, session, advance)
        quality = rate_spaces([one.space for one in spaces], samples.labels, options, ids=samples.ids)
    return replace(quality, notes=tuple(notes))


def quality_of_images(
    spaces: Sequence[EmbeddedSet], samples: Samples, run: Path, config: RunConfig, session: Session
) -> SampleQuality:
    """Return the quality that mining left in the run's folder if it fits, else measure it.

    It fits if it is of these samples, by the rule of the settings, and the embeddings have not been computed
    again. Its warnings are then shown again. Nothing is written.
    """
    stored = None if any(one.fresh for one in spaces) else _stored(samples, run, config.mining.quality)
    for note in stored.notes if stored else ():
        session.display.say(f"warning: {note}")
    return stored or rate_images(spaces, samples, config, session)


def _stored(samples: Samples, run: Path, rule: str) -> SampleQuality | None:
    if not has_tensors(run / FILE):
        return None
    found = SampleQuality.load(run / FILE)
    return found if found.rule == rule and found.of(samples.ids) is not None else None


def choose_prototypes(spaces: Sequence[EmbeddedSet], robustness: SampleQuality, job: Job) -> PrototypeSet:
    """Return the prototypes of every class, mined once: robust images, and a diverse few of them."""
    path, samples, ranks = job.folder / "prototypes", job.train.samples, job.session.ranks
    if not _is_done(path, spaces, job):
        mined = mine_rated(
            spaces[0].space,
            samples.labels,
            robustness,
            _options(job.config, job.session),
            ids=samples.ids,
            class_names=samples.class_names,
            files=[samples.name_in_source(position) for position in range(len(samples))],
        )
        mined.save(path, ranks)
    return PrototypeSet.load(path, ranks)


def _is_done(path: Path, spaces: Sequence[EmbeddedSet], job: Job) -> bool:
    """Return whether the file is there and its embeddings have not been made again since."""
    return has_tensors(path, job.session.ranks) and not any(one.fresh for one in spaces)


def _options(config: RunConfig, session: Session, advance: Advance | None = None) -> QualityOptions:
    device, ranks = session.device, session.ranks
    return QualityOptions(config.mining, config.seed, device=device, report=advance, ranks=ranks)
