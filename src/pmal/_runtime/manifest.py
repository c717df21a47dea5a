"""What a figure needs beside it to be believed: versions, hardware, code revision."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import pmal
from pmal._runtime.devices import describe_hardware

LIBRARIES = ("numpy", "torch", "numba", "triton", "pillow", "pyarrow", "safetensors", "scikit-learn", "scipy")


def describe_environment(device: torch.device) -> dict[str, Any]:
    return {
        "pmal": pmal.__version__,
        "revision": code_revision(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "hardware": describe_hardware(device),
    }


def code_revision() -> str | None:
    """The git revision of the code in use, with `+changes` where files differ from it.

    Where a tree is copied to a machine for a measurement, $PMAL_REVISION says it. Outside git it is None.
    """
    if os.environ.get("PMAL_REVISION"):
        return os.environ["PMAL_REVISION"]
    folder = Path(pmal.__file__).parent
    try:
        # Inside an ignored folder of another repository, its revision would say nothing of this code.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        revision = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return revision + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    # Without its lock, which would stay behind if this process is killed, and stop the user's next command.
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
