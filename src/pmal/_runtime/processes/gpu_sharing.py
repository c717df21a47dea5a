"""Several processes on one GPU at the same time, through NVIDIA's Multi-Process Service (MPS).

Without it, a GPU works for one process at a time and switches between them. With it, the kernels of several
processes run side by side, which small networks need to fill a GPU.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pmal._runtime.processes.launch import environment

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL_PIPES = Path("/tmp/nvidia-mps")
_SECONDS = 20.0
"""Time allowed for the service to start or end, before we continue without it."""


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """Let processes that are started inside the block use a GPU side by side; yield whether they will.

    The service belongs to this program alone. Its files are in a temporary folder; it ends with the block.
    A service that already runs is used as it is. Without MPS, the processes take turns.
    """
    if PIPES in os.environ or (USUAL_PIPES / "control").exists():
        yield True
        return
    control = shutil.which(CONTROL)
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="pmal-mps-", ignore_cleanup_errors=True) as folder:
        places = {PIPES: f"{folder}/pipes", LOGS: f"{folder}/logs"}
        try:
            started = _start(control, places)
            with environment(places if started else {}):
                yield started
        finally:
            # Also if the start failed or was interrupted: the service may run nevertheless.
            _run([control], places, "quit\n")


def _start(control: str, places: dict[str, str]) -> bool:
    for place in places.values():
        os.mkdir(place, 0o700)
    return _run([control, "-d"], places)


def _run(command: list[str], places: dict[str, str], words: str = "") -> bool:
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **places},
            input=words,
            text=True,
            timeout=_SECONDS,
            # Not pipes: the service keeps them open after the command that started it has ended.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0
