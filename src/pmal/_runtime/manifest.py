"""What is recorded next to every figure: versions, hardware, code revision."""

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
    """Return the versions, the code revision and the hardware of this process."""
    return {
        "pmal": pmal.__version__,
        "revision": code_revision(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "hardware": describe_hardware(device),
    }


def code_revision() -> str | None:
    """Return the git revision of the code in use, with `+changes` if files differ from it.

    For a copy of the tree without its history, $PMAL_REVISION gives the revision. Outside git it is None.
    """
    if os.environ.get("PMAL_REVISION"):
        return os.environ["PMAL_REVISION"]
    folder = Path(pmal.__file__).parent
    try:
        # In an ignored folder of another repository, that repository's revision says nothing about this code.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        revision = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return revision + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    # Without git's lock: if this process is killed, the lock would stay and block the user's next command.
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
