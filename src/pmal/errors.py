"""What can go wrong, sorted by who has to act. The command line prints the message alone, on one line.

Every message names the place (which file, which sample, which option) and the fix. In Python these are the
usual exceptions, too: a ValueError, or a FileNotFoundError if a file is missing.
"""

import difflib
import errno
from collections.abc import Iterable


class PmalError(Exception):
    """The run failed for a reason that its message explains."""

    exit_code = 1


class UsageError(PmalError, ValueError):
    """The caller asked for something that does not exist or does not fit together."""

    exit_code = 2


class DataError(PmalError, ValueError):
    """A file or a sample cannot be used."""

    exit_code = 3


class MissingFileError(DataError, FileNotFoundError):
    """No file or folder has this name.

    >>> try:
    ...     raise MissingFileError("photos: no such folder")
    ... except FileNotFoundError as error:
    ...     print(error)
    photos: no such folder
    """


class Interrupted(BaseException):
    """A signal asked the process to stop, and everything done so far is on disk.

    Like `KeyboardInterrupt` no `Exception`: it comes wherever the program is, also within code whose faults
    are caught and reported, and it is none of them.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(signal_number, message)  # both: another process makes it again from them
        self.exit_code = 128 + signal_number

    def __str__(self) -> str:
        return str(self.args[1])


def first_line(error: BaseException) -> str:
    r"""Return the reason that another library gave, or at least its kind, for a message on one line.

    >>> first_line(RuntimeError("no kernel\nTraceback ...")), first_line(MemoryError())
    ('no kernel', 'MemoryError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_NO_MEMORY = (
    "out of memory",
    "t allocate memory",
    "annot allocate memory",
    "not enough memory",
    "bad alloc",
    "failed to map segment",  # of a library that is imported late
)


def out_of_memory(error: Exception) -> str | None:
    """Return what to lower if memory has run out, of the host or of the device; None for other errors.

    >>> out_of_memory(MemoryError())
    'out of memory (no room): lower training.batch_size, --memory-limit or --workers'
    """
    first = (str(error).strip() or "no room").splitlines()[0]
    ran_out = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    told = isinstance(error, RuntimeError | ImportError) and any(words in first for words in _NO_MEMORY)
    if not ran_out and not told:
        return None
    fix = "lower training.batch_size, --memory-limit or --workers"
    return f"out of memory ({first[:120]}): {fix}"


def did_you_mean(name: str, valid: Iterable[str], cutoff: float = 0.4) -> str:
    """Return the nearest valid name as a question that continues a message; empty if none is near.

    >>> did_you_mean("mnits", ["mnist", "svhn"]), did_you_mean("photos", ["mnist", "svhn"])
    (" did you mean 'mnist'?", '')
    """
    lowered = {option.lower(): option for option in valid}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=cutoff)
    return f" did you mean '{lowered[near[0]]}'?" if near else ""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    """Return an error for a name that is not among the valid ones, with the nearest valid one as its fix.

    >>> str(unknown_name("encoder", "oscrl", ["oscri", "small"]))
    "unknown encoder 'oscrl': did you mean 'oscri'? Valid: oscri, small"
    """
    options = list(valid)
    return UsageError(f"unknown {kind} '{name}':{did_you_mean(name, options)} Valid: {', '.join(options)}")
