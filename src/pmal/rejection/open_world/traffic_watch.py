"""A watch over answers, by their p-values alone: how many are rejected, and whether known images change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal.errors import UsageError
from pmal.rejection.calibration.thresholds import rejected_levels
from pmal.rejection.open_world.martingale import Jumper, Ranks, levels

WATCHED = ("known", "traffic")
"""The two martingales: of accepted answers, and of all."""


@dataclass
class TrafficWatch:
    """Watches p-values of answers, with no images: how many are rejected, and whether known ones change.

    Two martingales, each of which gives a false alarm with a probability of at most `alarm`, however many
    answers there are. That of `known` looks at accepted answers alone: it finds that known images look more
    unknown than they did. That of `traffic` looks at all: it also finds that more unknown images come in.

    >>> watch = TrafficWatch(samples=99, accept=0.95)
    >>> watch.observe([0.5, 0.02, 0.99])
    >>> watch.state()["answered"], watch.state()["rejected"], watch.state()["alarm"]
    (3, 1, False)
    """

    samples: int
    accept: float = 0.95
    alarm: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alarm < 1:
            raise UsageError(f"alarm is {self.alarm}: pass a share above 0 and below 1, such as 0.01")
        self.rejected = rejected_levels(self.samples, self.accept)
        known = Ranks(self.samples, self.rejected + 1, self.seed)
        self._ranks = dict(zip(WATCHED, (known, Ranks(self.samples, 1, self.seed + 1)), strict=True))
        self._jumpers = {name: Jumper() for name in self._ranks}
        self._since: dict[str, int | None] = dict.fromkeys(self._ranks)
        self.answered, self.rejected_answers = 0, 0
        self._tenths = np.zeros(10, np.int64)

    def observe(self, p_values: Sequence[float] | NDArray[np.floating]) -> None:
        """Take the p-values of answers, in the order in which they were given."""
        for level in levels(p_values, self.samples).tolist():
            self.take(level)

    def take(self, level: int) -> None:
        """Take one answer, by its p-value times samples + 1."""
        self.answered += 1
        self._tenths[min(10 * (level - 1) // (self.samples + 1), 9)] += 1
        accepted = level > self.rejected
        self.rejected_answers += not accepted
        for name in WATCHED if accepted else ("traffic",):
            self._bet(name, level)

    def state(self) -> dict[str, Any]:
        """Return what was seen, ready for JSON."""
        count = self.answered
        watched = {name: self._about(name) for name in self._jumpers}
        return {
            "answered": count,
            "rejected": self.rejected_answers,
            "rejection_rate": self.rejected_answers / count if count else None,
            "expected_rejection_rate": self.rejected / (self.samples + 1),
            "p_value_tenths": self._tenths.tolist(),
            **watched,
            "false_alarms": self.alarm,
            "alarm": any(one["alarm"] for one in watched.values()),
        }

    def log_capital(self, name: str) -> float:
        """Return the natural logarithm of what the players of a martingale have now."""
        return self._jumpers[name].log_capital

    def _bet(self, name: str, level: int) -> None:
        jumper = self._jumpers[name]
        capital = jumper.bet(self._ranks[name].next(level))
        if self._since[name] is None and capital >= -math.log(self.alarm):
            self._since[name] = self.answered

    def _about(self, name: str) -> dict[str, Any]:
        jumper = self._jumpers[name]
        return {
            "evidence": jumper.evidence,
            "alarm": self._since[name] is not None,
            "alarm_at": self._since[name],
        }


def check_watchable(held_out: int | None, per_class: bool) -> None:
    """Refuse a model whose p-values cannot be watched.

    Args:
        held_out: how many images its p-values come from; None for a model without a calibration.
        per_class: whether each class has its own threshold.

    Raises:
        UsageError: there are no p-values, or they are of several kinds.
    """
    if not held_out:
        raise UsageError("no images were held out, so there are no p-values: fit with more images")
    if per_class:
        fix = "use a model with rejection.per_class=false"
        raise UsageError(f"it has a threshold per class, so its p-values are not of one kind: {fix}")


def in_words(state: dict[str, Any]) -> list[str]:
    """Return what a watch says, as lines: how many are rejected, then one for each martingale."""
    if not state["answered"]:
        return ["no answers"]
    rate, expected = 100 * state["rejection_rate"], 100 * state["expected_rejection_rate"]
    usual = f"{expected:.1f} % of known images are"
    lines = [f"{state['rejected']:,} of {state['answered']:,} rejected ({rate:.1f} %; {usual})"]
    for name in WATCHED:
        one = state[name]
        said = f"{_CHANGED[name]}, since answer {one['alarm_at']:,}" if one["alarm"] else _AS_BEFORE[name]
        lines.append(f"{said} (evidence 10^{one['evidence']:.1f})")
    return lines


_AS_BEFORE = {"known": "accepted images look as held out", "traffic": "all images look as held out"}
_CHANGED = {
    "known": "ALARM: known images look more unknown than those held out",
    "traffic": "ALARM: more images look unknown than of known ones alone",
}
