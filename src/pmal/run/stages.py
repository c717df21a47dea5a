"""The stages of a run by name: what each leaves in the run's folder, and how some of them are done alone."""

import shutil
from pathlib import Path

from pmal._runtime.tensors import has_tensors
from pmal.config import STAGES, RunConfig
from pmal.errors import UsageError, unknown_name
from pmal.methods import METHODS

_MINING = ("embeddings", "mining")

_FILES = {
    "classifiers": ("classifiers", "finetuned*", "finetuning", "frozen"),
    "embeddings": ("embeddings",),
    "mining": ("prototypes.json", "prototypes*.safetensors", "quality.json", "quality*.safetensors", "audit"),
    "optimization": ("optimization",),
    # What `pmal export` writes beside the model has the rule of that model in it.
    "calibration": ("model.onnx", "model.md", "model", "folds*"),
    "evaluation": ("metrics.json", "manifest.json", "report.html"),
}

_LATER = ("mining", "optimization", "rejection")
CHANGEABLE = {
    "classifiers": ("method", "method_options", "seed", "data", "encoder", "training", "ensemble", *_LATER),
    "embeddings": _LATER,
    "mining": _LATER,
    # The options of a method that has this stage are those of its final head.
    "optimization": ("optimization", "method_options", "rejection"),
    "calibration": ("rejection",),
    "evaluation": (),
}
"""Sections of the settings that may differ from the run's own when it is done anew from a stage on."""


def check_stages(config: RunConfig, out: Path, start: str | None, only: str | None) -> None:
    """Fail before any work where the stages asked for do not exist or cannot be done."""
    method = METHODS[config.method]
    left_out = () if method.mines else (*_MINING, *(() if method.final else ("optimization",)))
    stages = [stage for stage in STAGES if stage not in left_out]
    for name in (start, only):
        if name is not None and name not in stages:
            raise unknown_name(f"stage of method {config.method}", name, stages)
    if only is None:
        return
    if start not in (None, only):
        raise UsageError(f"--from {start} --only {only}: both must name the same stage, which is done anew")
    before = stages[: stages.index(only)]
    for stage in before:
        if not _is_done(stage, out, config):
            raise UsageError(f"{out}: stage {only} needs {stage} done: run --only {stage} first")


def discard(out: Path, start: str) -> None:
    """Delete what a stage and all after it have left; the last first, so that nothing outlives its cause."""
    for stage in reversed(STAGES[STAGES.index(start) :]):
        for pattern in _FILES[stage]:
            for path in out.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_done(stage: str, out: Path, config: RunConfig) -> bool:
    if stage == "classifiers":
        return all(has_tensors(out / stage / str(u) / "weights") for u in range(config.classifiers))
    if stage == "embeddings":
        return all(has_tensors(out / stage / str(u)) for u in range(config.classifiers))
    if stage == "mining":
        return has_tensors(out / "prototypes")
    if stage == "optimization":
        return has_tensors(out / stage / "weights")
    return (out / "model" / "model.json").is_file()
