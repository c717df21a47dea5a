"""What can go wrong, sorted by who has to act. The command line prints the message alone, on one line.

Every message names the place (which file, which sample, which option) and the fix.
"""

import difflib
from collections.abc import Iterable


class PmalError(Exception):
    """The run failed for a reason that its message explains."""

    exit_code = 1


class UsageError(PmalError):
    """The caller asked for something that does not exist or does not fit together."""

    exit_code = 2


class DataError(PmalError):
    """A file or a sample cannot be used."""

    exit_code = 3


class Interrupted(PmalError):
    """A signal asked the process to stop, and everything done so far is on disk."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    """An error for a name that is not among the valid ones, with the nearest valid one as its fix.

    >>> str(unknown_name("encoder", "oscrl", ["oscri", "small"]))
    "unknown encoder 'oscrl': did you mean 'oscri'? Valid: oscri, small"
    """
    options = list(valid)
    lowered = {option.lower(): option for option in options}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.4)
    hint = f" did you mean '{lowered[near[0]]}'?" if near else ""
    return UsageError(f"unknown {kind} '{name}':{hint} Valid: {', '.join(options)}")
