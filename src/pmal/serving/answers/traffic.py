"""The watch over what a service answers: by p-values alone, in memory and, where asked for, in a file."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pmal._runtime.files import make_folder
from pmal.errors import DataError, UsageError
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.martingale import levels
from pmal.rejection.open_world.traffic_watch import WATCHED, TrafficWatch, check_watchable, in_words
from pmal.serving.answers.answer_files import KEPT, read_p_values, watched_name

FILE_LIMIT = 8 << 20
"""Bytes of a file of p-values, more than 100,000 answers; then it becomes FILE.old, and a new one begins."""
MOST_POINTS = 240
"""Points of a chart, at most, however many answers there are."""


class TrafficHistory:
    """Points of a watch at equal distances in answers; every second one is dropped when there are too many.

    >>> watch = TrafficWatch(samples=99)
    >>> history = TrafficHistory(watch)
    >>> history.observe([0.5, 0.02])
    >>> history.points()["answered"], history.points()["rejected"]
    ([0, 1, 2], [0, 0, 1])
    """

    def __init__(self, watch: TrafficWatch) -> None:
        self.watch = watch
        self._every = 1
        self._points = [self._now()]

    def observe(self, p_values: Sequence[float]) -> None:
        """Let the watch take p-values, and keep points of what it says."""
        for level in levels(p_values, self.watch.samples).tolist():
            self.watch.take(level)
            if self.watch.answered % self._every == 0:
                self._points.append(self._now())
            if len(self._points) > MOST_POINTS:
                self._points, self._every = self._points[::2], 2 * self._every

    def points(self) -> dict[str, list[Any]]:
        """Return the points as columns, the latest answer last.

        Returns:
            `answered` and `rejected` up to each point, and the evidence of each martingale, in powers of ten.
        """
        points = list(self._points)
        if points[-1][0] != self.watch.answered:
            points.append(self._now())
        names, columns = ("answered", "rejected", *WATCHED), zip(*points, strict=True)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    def _now(self) -> tuple[float, ...]:
        evidence = (self.watch.log_capital(name) / math.log(10) for name in WATCHED)
        return (self.watch.answered, self.watch.rejected_answers, *evidence)


class Traffic:
    """The watch of a service: it begins anew when another model or score decides.

    Args:
        alarm: how likely each of the two alarms may ever be false.
        file: where p-values are kept over a restart, if anywhere.
        say: tells of an alarm, once, and of a file that cannot be written.
    """

    def __init__(self, alarm: float, file: Path | None, say: Callable[[str], None]) -> None:
        TrafficWatch(1, alarm=alarm)  # now, and not for each model
        self.alarm, self.file, self.say = alarm, file, say
        self.reason: str | None = None
        """Why nothing is watched; None: all is well."""
        self._watched, self._history, self._told = "", TrafficHistory(TrafficWatch(1, alarm=alarm)), False

    def follow(self, model: OpenSetModel, fingerprint: str) -> None:
        """Watch the answers of this model from now on; if they are watched already, go on."""
        rule, held = model.rule, model.calibration
        watched = f"{watched_name(fingerprint, rule.score)} {rule.accept} {rule.per_class}"
        if watched == self._watched:
            return
        self._watched, self._told, self.reason = watched, False, None
        images = len(held.predictions) if held else 0
        try:
            check_watchable(images, rule.per_class)
        except UsageError as error:
            self.reason, images = str(error), 1
        self._history = TrafficHistory(TrafficWatch(images, rule.accept, self.alarm))
        if self.file and self.reason is None:
            self._history.observe(self._kept())
            self._tell()

    def observe(self, watched: str, p_values: Sequence[float | None]) -> None:
        """Take the p-values of answers of a model and score, as `watched_name` calls them.

        Others than those that are watched are left out.
        """
        if self.reason is not None or watched != self._watched.split(" ", 1)[0]:
            return
        found = [p_value for p_value in p_values if p_value is not None]
        self._history.observe(found)
        if self.file and found:
            self._keep([f"{watched},{p_value!r}\n" for p_value in found])
        self._tell()

    @property
    def watch(self) -> TrafficWatch:
        """Return what takes the p-values."""
        return self._history.watch

    def state(self) -> dict[str, Any]:
        """Return what was seen, ready for JSON: counts, both alarms, words, and points for a chart."""
        found = self.watch.state()
        words = [] if self.reason else in_words(found)
        return {"reason": self.reason, **found, "words": words, "points": self._history.points()}

    def _tell(self) -> None:
        state = self.watch.state()
        if state["alarm"] and not self._told:
            self._told = True
            alarms = [line for line in in_words(state) if line.startswith("ALARM")]
            self.say(f"{'; '.join(alarms)}: correct some answers with `pmal update`, or train again")

    def _kept(self) -> list[float]:
        """Return the p-values of this model in the file, from an earlier run of the service."""
        assert self.file is not None
        make_folder(self.file.parent)
        try:
            with self.file.open("ab+") as stream:
                stream.seek(0)
                data = stream.read(FILE_LIMIT + (1 << 20))
                if data and not data.startswith(_HEAD):
                    raise DataError(
                        f"{self.file}: not a file that `pmal serve --p-values` wrote: choose another"
                    )
                stream.truncate(data.rfind(b"\n") + 1)  # a process that was killed leaves half a line
                if not data:
                    stream.write(_HEAD)
        except OSError as error:
            raise DataError(f"{self.file}: {error.strerror or error}") from None
        return read_p_values(self.file, self._watched.split(" ", 1)[0])

    def _keep(self, lines: list[str]) -> None:
        assert self.file is not None
        try:
            with self.file.open("ab") as stream:
                stream.write((b"" if stream.tell() else _HEAD) + "".join(lines).encode())
                size = stream.tell()
            if size > FILE_LIMIT:
                self.file.replace(self.file.with_name(f"{self.file.name}.old"))
        except OSError as error:
            self.say(f"{self.file}: {error.strerror or error}: p-values are kept in memory alone from now on")
            self.file = None


_HEAD = (",".join(KEPT) + "\n").encode()
