"""The quality of every training image: as the run's mining left it, or measured from the embeddings."""

from collections.abc import Sequence
from pathlib import Path

import torch

from pmal._runtime.progress import notes_of_warnings
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.data.samples import Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.mining import QualityOptions, SampleQuality, check_spaces, count_pairs
from pmal.mining.quality import QUALITY_RULES
from pmal.mining.sample_quality import FILE


def stored_quality(run: Path, samples: Samples, rule: str) -> SampleQuality | None:
    """None where mining was not done, went by another rule, or saw other images."""
    if not has_tensors(run / FILE):
        return None
    found = SampleQuality.load(run / FILE)
    return found if found.rule == rule and found.of(samples.ids) is not None else None


def measure_quality(
    samples: Samples, embedded: Sequence[EmbeddedSet], config: RunConfig, rule: str, session: Session
) -> SampleQuality:
    """As mining does it."""
    labels_N, ids_N = torch.from_numpy(samples.labels), torch.from_numpy(samples.ids)
    total = count_pairs(len(samples), len(embedded), config.mining) if rule == "topology" else 0
    display = session.display
    with notes_of_warnings(display) as notes, display.stage("robustness", total, "pairs") as advance:
        options = QualityOptions(config.mining, config.seed, device=session.device, report=advance)
        log_r_N = QUALITY_RULES[rule](check_spaces([e.space for e in embedded]), labels_N, options)
    order = ids_N.argsort()
    return SampleQuality(ids_N[order], log_r_N[order], rule, tuple(notes))
