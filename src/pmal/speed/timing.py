"""Time taken properly: warm-up left out, contestants in turns, the device waited for, the median of the rest.

Other load on a machine changes from second to second. Contestants that take turns meet the same load, so
their ratio holds where the figures themselves do not.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], object]
Rows = dict[str, list[Any]]
"""What was measured, by kind."""


@dataclass(frozen=True)
class Stopwatch:
    """Seconds of a piece of work, from an idle device to an idle device."""

    wait: Callable[[], None]
    """Returns when the device has nothing left to do."""
    clock: Callable[[], float] = time.perf_counter

    @classmethod
    def of(cls, device: torch.device) -> "Stopwatch":
        """Return a stopwatch for work on the device."""
        return cls((lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None))

    def seconds(self, work: Work) -> float:
        """Return the seconds that the work took."""
        self.wait()
        begin = self.clock()
        work()
        self.wait()
        return self.clock() - begin


def in_turns(
    works: Mapping[str, Work],
    watch: Stopwatch,
    *,
    warmup: int,
    repeats: int,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[str, list[float]]:
    """Return the seconds of each work, `repeats` times, one after the other in every turn.

    The first `warmup` turns do not count: they compile, choose algorithms, fill caches and start processes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warmup + repeats):
        for name, work in works.items():
            took = watch.seconds(work)
            if turn >= warmup:
                seconds[name].append(took)
            advance(1)
    return seconds


def spread(values: Sequence[float]) -> float:
    """Return the range from fastest to slowest turn, over the median: a difference below it may be noise.

    >>> spread([2.0, 2.5, 3.0])
    0.4
    """
    return (max(values) - min(values)) / statistics.median(values)
