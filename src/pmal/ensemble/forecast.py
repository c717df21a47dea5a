"""The expected time of a run on a CPU, shown before it starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal._runtime.text import duration
from pmal.config import RunConfig
from pmal.data.splits.task import Task
from pmal.encoders.choice import PHOTOS
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.names import weights_missing
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import trial_step
from pmal.ensemble.finetuning import forward_passes
from pmal.ensemble.heads import first_head
from pmal.ensemble.inputs import Inputs
from pmal.methods import METHODS

WORTH_SAYING, LONG = 60.0, 600.0
"""Seconds from which an estimate is printed, and from which it is a warning that names faster settings."""
IMAGES = 16
"""Images in the timing: enough to fill the cores, few enough for the largest networks."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Work:
    """The work of a run: images that a frozen network embeds, and images that pass a training step."""

    embedded: float
    trained: float


def forecast(
    config: RunConfig, task: Task, inputs: Inputs, passes: float, out: Path, session: Session
) -> str:
    """Return one line about the time of a new run; empty if it is short or resumed, and on a GPU.

    A step on a GPU is compiled and captured, which costs more time than the estimate is worth.
    """
    unheard = isinstance(session.display, Silent)
    if unheard or session.device.type != "cpu" or (out / "classifiers").exists():
        return ""
    frozen = inputs.backbone is not None
    spec = inputs.spec(config.encoder, task.class_names, first_head(config))
    work = work_of(task, passes, frozen, forward_passes(config.encoder))
    seconds = seconds_needed(work, spec, config, inputs.backbone)
    return describe_time(seconds, config.encoder.name, frozen, config.encoder.finetune != "none")


def work_of(task: Task, passes: float, frozen: bool, finetuning: float = 0.0) -> Work:
    """Return the work of a run, at so many passes per training image. Each fold is a separate training.

    Fine-tuning costs so many forward passes per training image. The run is then also measured without it, so
    that all images are embedded and trained on twice.
    """
    folds = task.folds * (1 - 1 / task.folds) if task.folds else 0.0
    runs = 2 if finetuning else 1
    embedded = runs * sum(map(len, task.parts().values())) + finetuning * len(task.train) if frozen else 0
    return Work(embedded, runs * passes * len(task.train) * (1 + folds))


def seconds_needed(
    work: Work,
    spec: ClassifierSpec,
    config: RunConfig,
    backbone: Backbone | None,
    clock: Clock = time.perf_counter,
) -> float:
    """Return the seconds that the work takes on this CPU, estimated from the time of a few blank images."""
    images = spec.blank(IMAGES)
    step = trial_step(spec, config)
    # A step of this head has all its passes already.
    each = METHODS[config.method].passes if spec.head.name == config.method else 1.0
    seconds = work.trained / each / IMAGES * _timed(lambda: step(images), clock)
    if backbone is not None and work.embedded:
        pixels = torch.zeros(IMAGES, 3, backbone.image_size, backbone.image_size, dtype=torch.uint8)
        seconds += work.embedded / IMAGES * _timed(lambda: backbone(pixels), clock)
    return seconds


def describe_time(seconds: float, encoder: str, frozen: bool, finetuned: bool = False) -> str:
    """Return one line about the time of a run; empty if it is short.

    >>> describe_time(42, "small", frozen=False), describe_time(150, "small", frozen=False)
    ('', 'about 2 min 30 s on this CPU')
    >>> describe_time(7300, "small", frozen=True)
    'warning: about 2 h 01 min on this CPU: fewer --epochs or a GPU take less'
    """
    if seconds < WORTH_SAYING:
        return ""
    text = f"about {duration(seconds)} on this CPU"
    if seconds < LONG:
        return text
    if finetuned:
        ways = ["no --finetune", "--set encoder.finetune_epochs=3"]
    else:
        ways = [way for way in ("" if frozen else _faster_encoder(encoder), "fewer --epochs") if way]
    return f"warning: {text}: {', '.join(ways)} or a GPU take less"


def _faster_encoder(encoder: str) -> str:
    if weights_missing(PHOTOS) is None:
        return f"--encoder {PHOTOS} (pretrained, for photos)"
    return "" if encoder == "small" else "--encoder small"


def _timed(call: Callable[[], object], clock: Clock) -> float:
    """Return the seconds of the second call: the first one allocates and chooses kernels."""
    call()
    start = clock()
    call()
    return clock() - start
