"""Folders for temporary files of gigabytes, which are gone when their process has ended, however it has.

Each holds a file that its process has locked. The kernel drops the lock with the process; so a folder whose
lock can be had is a dead one's, and the next process that needs room removes it.
"""

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_PREFIX, _LOCK = "pmal-spool-", "lock"


def make_spool(owner: object) -> Path:
    """Return a new folder in $TMPDIR, which is removed with its owner or, after a kill, by the next call."""
    remove_dead_spools()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = os.open(folder / f".{_LOCK}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(folder / f".{_LOCK}", folder / _LOCK)  # only now it can be seen, and it is locked
    weakref.finalize(owner, _remove, folder, held, os.getpid())
    return folder


def remove_dead_spools() -> None:
    """Remove what processes that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # of another user, or not locked yet
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def _remove(folder: Path, held: int, owner: int) -> None:
    # A forked process inherits the finalizer, but not the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
