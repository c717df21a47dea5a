"""The quality of every training image: read from the run's mining, or measured from the embeddings."""

from collections.abc import Sequence
from pathlib import Path

from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.data.samples import Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.mining import SampleQuality
from pmal.mining.run_mining import rate_images
from pmal.mining.sample_quality import FILE


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
