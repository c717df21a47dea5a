"""The course of a watch over traffic, for a chart: so many points at most, however many answers."""

import math
from collections.abc import Sequence
from typing import Any

from pmal.rejection.open_world.martingale import levels
from pmal.rejection.open_world.traffic_watch import WATCHED, TrafficWatch

MOST_POINTS = 240


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
        return {name: list(column) for name, column in zip(_COLUMNS, zip(*points, strict=True), strict=True)}

    def _now(self) -> tuple[float, ...]:
        evidence = (self.watch.log_capital(name) / math.log(10) for name in WATCHED)
        return (self.watch.answered, self.watch.rejected_answers, *evidence)


_COLUMNS = ("answered", "rejected", *WATCHED)
