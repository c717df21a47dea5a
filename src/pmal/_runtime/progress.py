"""One progress display: a bar on a terminal, plain lines elsewhere, silence for library calls."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

from pmal._runtime.text import duration

Advance = Callable[[int], None]
"""Report `n` more units done."""


class Display(Protocol):
    """What long work tells a person."""

    def stage(
        self, name: str, total: int, unit: str, done: int = 0
    ) -> contextlib.AbstractContextManager[Advance]:
        """Begin a part of the work; `done` of its total is done already."""
        ...

    def say(self, text: str) -> None: ...


class Silent:
    """A display for calls from Python: nothing is printed."""

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        yield lambda n: None

    def say(self, text: str) -> None:
        pass


class Lines:
    """A display for logs and pipes: a line every `every` seconds, and one when a stage ends."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        start = last = time.monotonic()
        new = 0

        def advance(n: int) -> None:
            nonlocal new, last
            new += n
            now = time.monotonic()
            if now - last >= self.every:
                last = now
                speed, left = new / (now - start), total - done - new
                rest = f", {duration(left / speed)} left" if new and left > 0 else ""
                self.say(f"{name}: {done + new:,} of {total:,} {unit}, {_speed(speed)} {unit}/s{rest}")

        yield advance
        seconds = time.monotonic() - start
        if new:
            speed = new / max(seconds, 1e-9)
            self.say(f"{name}: {new:,} {unit} in {seconds:.1f} s ({_speed(speed)} {unit}/s)")

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever has closed it does not read on: the work goes on
            print(text, file=sys.stderr, flush=True)


class Bars:
    """A display for terminals: a bar with speed and remaining time."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True)

    @contextlib.contextmanager
    def stage(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(name, total=total, completed=done, speed="")

            def advance(n: int) -> None:
                speed = progress.tasks[0].speed
                progress.update(task, advance=n, speed=f"{_speed(speed)} {unit}/s" if speed else unit)

            yield advance

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _speed(speed: float) -> str:
    """Return a speed without digits that say nothing; slow ones are not rounded to zero.

    >>> _speed(2680.6), _speed(2.34), _speed(0.114)
    ('2,681', '2.3', '0.11')
    """
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def choose_display(quiet: bool) -> Display:
    if quiet:
        return Silent()
    return Bars() if sys.stderr.isatty() else Lines()


@contextlib.contextmanager
def notes_of_warnings(display: Display) -> Iterator[list[str]]:
    """Collect what the block warns the user of, and say it once in plain words when the block ends."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes += dict.fromkeys(str(warning.message) for warning in caught)
    for note in notes:
        display.say(f"warning: {note}")
