"""Figures that a run would have without fine-tuning, shown next to its own."""

from collections.abc import Mapping
from typing import Any

from pmal.data.feeding.parts import Part
from pmal.ensemble.job import Job
from pmal.optimization.learned import Learn
from pmal.rejection.building import build_model
from pmal.reporting.evaluation import measure_model

KEPT = ("accuracy", "scores", "decision")


def measure_frozen(learn: Learn, parts: Mapping[str, Part], job: Job) -> dict[str, Any]:
    """Return, as `frozen`, accuracy, scores and decision of a model on features of the frozen network.

    It is trained, calibrated and tested on the same images as the run's model. Unfinished work is resumed.

    Args:
        learn: trains the method, as the run did.
        parts: the images of the run by part, as the frozen network sees them.
        job: the run's own.
    """
    frozen = job.on(parts["train"], job.folder / "frozen")
    model = build_model(learn(frozen), parts.get("held out"), frozen)
    figures = measure_model(model, None, parts, frozen.session).figures
    return {"frozen": {name: figures[name] for name in KEPT if name in figures}}
