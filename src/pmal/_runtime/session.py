"""What every stage needs of its environment, and what never changes a result."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pmal._runtime.devices import choose_device
from pmal._runtime.processes.launch import read_launch, usable_cores
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.progress import Display, Silent
from pmal.config import Resources
from pmal.errors import UsageError

WORKERS_PER_CORE = 8


def _forget(**event: Any) -> None:
    pass


@dataclass(frozen=True)
class Session:
    """Device, display and log of the current work, and the processes that share it."""

    device: torch.device
    resources: Resources
    display: Display
    log: Callable[..., None] = _forget
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        workers, most = self.resources.workers, WORKERS_PER_CORE * usable_cores()
        if workers > most:  # each worker starts a Python with torch, which costs seconds of a core
            raise UsageError(f"--workers {workers} are too many for this machine: choose {most} or fewer")

    def logging_to(self, log: Callable[..., None]) -> "Session":
        """Return the same session with another log."""
        return dataclasses.replace(self, log=log)


def open_session(resources: Resources | None = None, display: Display | None = None) -> Session:
    """Return the session of a single process, even if others were started with it."""
    resources = resources or Resources()
    return Session(choose_device(resources.device), resources, display or Silent())


def open_shared_session(resources: Resources, display: Display) -> Session:
    """Return the session of one of torchrun's processes, or of a single one. Only the first has a display."""
    from pmal._runtime.processes.torchrun import local_device, open_ranks

    launch, ranks = read_launch(), open_ranks(resources.device)
    if not resources.workers and launch.local_size > 1:  # each core once, not once per process
        workers = max(1, usable_cores() // launch.local_size)
        resources = dataclasses.replace(resources, workers=workers)
    device = local_device(resources.device, launch)
    return Session(device, resources, display if ranks.first else Silent(), ranks=ranks)
