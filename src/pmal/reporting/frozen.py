"""Figures of a run as they would be without fine-tuning, to stand beside its own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pmal._engine.loop import training_set
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import RunConfig
from pmal.data.feeding.parts import Part
from pmal.data.splits.task import Task
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.inputs import Inputs
from pmal.mining import PrototypeSet
from pmal.rejection.building import build_model
from pmal.reporting.evaluation import measure_model

Learn = Callable[[Part, Path, Session], tuple[Classifier, PrototypeSet | None]]
KEPT = ("accuracy", "scores", "decision")


def measure_frozen(
    learn: Learn, inputs: Inputs, task: Task, config: RunConfig, run: Path, session: Session
) -> dict[str, Any]:
    """Return, as `frozen`, accuracy, scores and decision of a model on the features of the frozen network.

    Empty where there was no fine-tuning.

    Trained, calibrated and tested on the same images as the run's own; unfinished work is taken up.
    """
    if config.encoder.finetune == "none":
        return {}
    parts = inputs.open_parts(task, session)
    quiet = replace(session, display=Silent(), log=lambda **event: None)
    network, prototypes = learn(parts["train"], run / "frozen", quiet)
    data = training_set(parts["train"], quiet)
    model = build_model(network, data, prototypes, parts.get("held out"), config, quiet)
    figures = measure_model(model, None, parts, quiet.display, quiet.ranks)
    return {"frozen": {name: figures[name] for name in KEPT if name in figures}}
