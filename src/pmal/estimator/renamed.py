"""Options that have another name now: the old one is refused with the new one in the message."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from pmal.errors import UsageError

RENAMED = {"score": "reject_by"}


def refuse_renamed(names: Iterable[str]) -> None:
    """Raise UsageError if an old name is among these.

    >>> refuse_renamed(["score"])
    Traceback (most recent call last):
    pmal.errors.UsageError: the option score is called reject_by now: use reject_by
    """
    for name in names:
        if name in RENAMED:
            raise UsageError(f"the option {name} is called {RENAMED[name]} now: use {RENAMED[name]}")


def with_present_names(options: dict[str, Any]) -> dict[str, Any]:
    """Return options that were saved by an older version under the names that they have now.

    >>> with_present_names({"score": "logit", "accept": 0.9})
    {'reject_by': 'logit', 'accept': 0.9}
    """
    return {RENAMED.get(name, name): value for name, value in options.items()}


def refuses_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that refuses old names; its signature stays."""

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        refuse_renamed(options)
        init(self, *args, **options)

    return checked
