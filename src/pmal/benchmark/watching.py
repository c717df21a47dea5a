"""Displays that note what a run reports: how long its stages took over all attempts."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pmal._runtime.files import append_line
from pmal._runtime.progress import Advance, Display


class Watched:
    """A display that passes everything on and calls `before_stage` when a stage begins."""

    def __init__(self, display: Display, notes: Path, before_stage: Callable[[], None]) -> None:
        self.display, self.notes, self.before_stage = display, notes, before_stage

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """Show a stage, and note its seconds and steps when it ends."""
        self.before_stage()
        start, new = time.monotonic(), 0

        def count(n: int) -> None:
            nonlocal new
            new += n
            advance(n)

        try:
            with self.display.stage(name, total, unit, done) as advance:
                yield count
        finally:
            note(self.notes, stage=name, seconds=time.monotonic() - start, done=new, total=total, unit=unit)

    def say(self, text: str) -> None:
        """Show a line."""
        self.display.say(text)


def note(path: Path, **words: Any) -> None:
    """Append a note to a file, as one line of JSON."""
    append_line(path, json.dumps(words))


def stage_seconds(notes: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds of each stage over all attempts."""
    found: dict[str, float] = {}
    for words in notes:
        if "stage" in words:
            found[words["stage"]] = found.get(words["stage"], 0.0) + words["seconds"]
    return found


class Named:
    """A display of plain lines that begin with the name of their cell, for several cells at a time."""

    def __init__(self, display: Display, name: str) -> None:
        self.display, self.name = display, name

    def stage(
        self, name: str, total: int, unit: str, done: int = 0
    ) -> contextlib.AbstractContextManager[Advance]:
        """Show a stage under the name of the cell."""
        return self.display.stage(f"{self.name}: {name}", total, unit, done)

    def say(self, text: str) -> None:
        """Show a line under the name of the cell."""
        self.display.say(f"{self.name}: {text}")
