"""The stages of a run, one record each: its name, what it leaves, what may change before it is redone.

Everything that names a stage uses this list: the pipeline, `--from` and `--only`, the run folder, the docs.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pmal.config import RunConfig
from pmal.errors import UsageError, unknown_name
from pmal.methods import METHODS, Method

_LATER = ("mining", "optimization", "rejection")


@dataclass(frozen=True)
class Stage:
    """A step of a run that can be resumed, redone or run alone."""

    name: str
    files: tuple[str, ...]
    """Patterns of what it leaves in the run's folder."""
    last: str
    """The file that it writes last. If it exists, the stage is done. `{u}` stands for each classifier."""
    may_change: tuple[str, ...]
    """Sections of the settings that may change when the run is redone from this stage on."""
    belongs_to: Callable[[Method], bool] = lambda method: True
    """Whether runs of a method have the stage."""

    def is_done(self, out: Path, config: RunConfig) -> bool:
        """Return whether the run in the folder `out` has finished this stage."""
        return all((out / self.last.format(u=u)).is_file() for u in range(config.classifiers))


STAGES = (
    Stage(
        "classifiers",
        files=("classifiers", "finetuned*", "finetuning", "frozen"),
        last="classifiers/{u}/weights.json",
        may_change=("method", "method_options", "seed", "data", "encoder", "training", "ensemble", *_LATER),
    ),
    Stage(
        "embeddings",
        files=("embeddings",),
        last="embeddings/{u}.json",
        may_change=_LATER,
        belongs_to=lambda method: method.mines,
    ),
    Stage(
        "mining",
        files=("prototypes.json", "prototypes*.safetensors", "quality.json", "quality*.safetensors", "audit"),
        last="prototypes.json",
        may_change=_LATER,
        belongs_to=lambda method: method.mines,
    ),
    Stage(
        "optimization",
        files=("optimization",),
        last="optimization/weights.json",
        # The options of a method that has this stage are those of its final head.
        may_change=("optimization", "method_options", "rejection"),
        belongs_to=lambda method: method.mines or bool(method.final),
    ),
    Stage(
        "calibration",
        # What `pmal export` writes next to the model contains the rule of that model.
        files=("model.onnx", "model.md", "model", "folds*"),
        last="model/model.json",
        may_change=("rejection",),
    ),
    Stage(
        "evaluation",
        files=("answers.json", "answers*.safetensors", "metrics.json", "manifest.json", "report.html"),
        last="manifest.json",
        may_change=(),
    ),
)
"""What a run does, in order."""

STAGE_NAMES = tuple(stage.name for stage in STAGES)


def stage_named(name: str) -> Stage:
    """Return the stage of this name, which must exist."""
    return STAGES[STAGE_NAMES.index(name)]


def check_stages(config: RunConfig, out: Path, start: str | None, only: str | None) -> None:
    """Check, before any work, that the requested stages exist and can be done.

    Args:
        config: settings of the run.
        out: its folder.
        start: the stage to redo from. None: where the run stopped.
        only: the single stage to do. None: all.

    Raises:
        UsageError: there is no such stage, a stage before it is not done, or `start` and `only` differ.
    """
    stages = [stage for stage in STAGES if stage.belongs_to(METHODS[config.method])]
    names = [stage.name for stage in stages]
    for name in (start, only):
        if name is not None and name not in names:
            raise unknown_name(f"stage of method {config.method}", name, names)
    if only is None:
        return
    if start not in (None, only):
        raise UsageError(f"--from {start} --only {only}: both must name the same stage, which is done again")
    for stage in stages[: names.index(only)]:
        if not stage.is_done(out, config):
            raise UsageError(f"{out}: stage {only} needs {stage.name} done: run --only {stage.name} first")


def discard(out: Path, start: str) -> None:
    """Delete the files of a stage and of all after it, the last stage first.

    So no file is ever left without those that it was computed from.
    """
    for stage in reversed(STAGES[STAGE_NAMES.index(start) :]):
        for pattern in stage.files:
            for path in out.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
