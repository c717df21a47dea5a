"""Which of several processes this is, from torchrun's environment variables, and its usable cores.

Imports no torch.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pmal.errors import UsageError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Launch(NamedTuple):
    """A process's number among all processes, and among those of its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def is_alone() -> bool:
    """Return whether the environment describes no other process."""
    return "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"


def read_launch() -> Launch:
    """Return this process's place among all. Without torchrun's variables it is alone.

    Raises:
        UsageError: torchrun's variables are incomplete or malformed.
    """
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


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and those that it starts; restore them afterwards."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def usable_cores() -> int:
    """Return how many CPU cores this process may use; this can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_ranks() -> None:
    """Reject several processes, for commands that would do the same work in each."""
    if read_launch().size > 1:
        raise UsageError("only pmal fit and pmal mine share their work: start others without torchrun")
