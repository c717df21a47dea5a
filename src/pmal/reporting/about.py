"""Description of a run that goes with its figures: data, split, method and settings."""

from pathlib import Path
from typing import Any

from pmal._runtime.text import printable
from pmal.config import RunConfig, to_settings
from pmal.data.splits.task import Task
from pmal.methods import METHODS
from pmal.reporting.image_passes import image_passes


def describe(config: RunConfig, task: Task) -> dict[str, Any]:
    """Return the description that goes with every figure of the run.

    The passes count all classifiers, but only the first classifier is measured.
    """
    settings = to_settings(config)
    about = {
        "source": printable(Path(config.data.source).name),
        "split": task.split.label,
        "known_classes": len(task.class_names),
        "unknown_classes": 0 if task.unknown is None else len(set(task.unknown.labels.tolist())),
        "method": config.method,
        "method_options": settings["method_options"],
        "classifiers": config.classifiers,
        "encoder": config.encoder.name,
        "projection": config.encoder.projection,
        "epochs": config.training.epochs,
        "passes": image_passes(config, len(task.class_names)),
        "augmentation": config.data.augmentation,
        "seed": config.seed,
    }
    phases = {name: settings[name] for name in ("mining", "optimization")}
    if not METHODS[config.method].mines:
        second = {name: settings["optimization"][name] for name in ("epochs", "learning_rate")}
        phases = {"optimization": second} if METHODS[config.method].second else {}
    return {"about": about | phases}
