"""The memory that this process may have: every reader asks here before it allocates what a file declares."""

import os
import resource
from pathlib import Path

from pmal.errors import DataError

_CONTROL_GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
MOST_EXPANDS = 1032
"""Deflate expands no further. What declares more for its bytes is damaged, or made to do harm."""
SMALL = 1 << 28
"""Bytes that any file may take, however small it is."""


def memory_bytes() -> int:
    """Return what this process may have: of the machine, of its container, and by `ulimit -v`."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in map(Path, _CONTROL_GROUPS):
        text = file.read_text().strip() if file.is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(limits if own == resource.RLIM_INFINITY else [*limits, own])


def check_memory(wanted: int, what: str, fix: str = "use a part of the samples") -> None:
    """Refuse, by its name, what would take more memory than there is.

    >>> check_memory(1 << 80, "big.npz")
    Traceback (most recent call last):
    pmal.errors.DataError: big.npz: takes 1,208,925,819,614,629,174,706,176 bytes, more than ...
    """
    most = memory_bytes()
    if wanted > most:
        room = f"{most:,} that this process may have"
        raise DataError(f"{what}: takes {wanted:,} bytes, more than the {room}: {fix}")


def check_expansion(wanted: int, packed: int, what: str) -> None:
    """Refuse what is out of all proportion to the file that declares it, or does not fit into memory."""
    if wanted > max(SMALL, MOST_EXPANDS * packed):
        fault = "damaged, or made to do harm: fetch it again"
        raise DataError(f"{what}: {packed:,} bytes declare {wanted:,}: {fault}")
    check_memory(wanted, what)
