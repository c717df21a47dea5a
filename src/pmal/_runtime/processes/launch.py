"""Which of several processes this is, by the environment that torchrun gives to each, and the cores that it
may use. Imports no torch."""

import os
from typing import NamedTuple

from pmal.errors import UsageError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Launch(NamedTuple):
    """A process's number among all, and among those of its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def is_alone() -> bool:
    """Whether the environment speaks of no other process."""
    return "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"


def read_launch() -> Launch:
    """Alone, unless the environment says otherwise."""
    if is_alone():
        return Launch()
    words = [os.environ.get(name, "") for name in _NAMES]
    try:
        launch = Launch(*map(int, words))
    except ValueError:
        given = ", ".join(f"{name}={word}" for name, word in zip(_NAMES, words, strict=True))
        raise UsageError(f"the environment has {given}: start several processes with torchrun") from None
    if not ("MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ):
        raise UsageError("WORLD_SIZE is set, MASTER_ADDR and MASTER_PORT are not: start it with torchrun")
    return launch


def usable_cores() -> int:
    """CPU cores that this process may use, which can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_ranks() -> None:
    """For commands that would do the same work in every process."""
    if read_launch().size > 1:
        raise UsageError("only pmal fit and pmal mine share their work: start others without torchrun")
