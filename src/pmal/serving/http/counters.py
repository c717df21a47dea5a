"""Figures for Prometheus, in its text format. Counted on the event loop alone, so that no lock is needed."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass
class Counter:
    """How often something happened, by labels."""

    name: str
    about: str
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, amount: float = 1.0, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.values[key] = self.values.get(key, 0.0) + amount

    def lines(self) -> list[str]:
        rows = [f"{self.name}{_labels(dict(key))} {_number(v)}" for key, v in sorted(self.values.items())]
        return [*_head(self.name, self.about, "counter"), *rows]


@dataclass
class Gauge:
    """A value that is asked for when somebody looks. None: not known on this system."""

    name: str
    about: str
    read: Callable[[], float | None]
    labels: Callable[[], Mapping[str, str]] = dict

    def lines(self) -> list[str]:
        value = self.read()
        if value is None:
            return []
        return [
            *_head(self.name, self.about, "gauge"),
            f"{self.name}{_labels(self.labels())} {_number(value)}",
        ]


@dataclass
class Histogram:
    """How values spread over buckets."""

    name: str
    about: str
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self) -> list[str]:
        rows, seen = [], 0
        for bound, count in zip([*map(_number, self.bounds), "+Inf"], self.counts, strict=True):
            seen += count
            rows.append(f'{self.name}_bucket{{le="{bound}"}} {seen}')
        totals = [f"{self.name}_sum {_number(self.total)}", f"{self.name}_count {seen}"]
        return [*_head(self.name, self.about, "histogram"), *rows, *totals]


class _Figure(Protocol):
    def lines(self) -> list[str]: ...


class Metrics:
    """All figures of one service."""

    def __init__(self) -> None:
        self.requests = Counter("pmal_requests_total", "Requests answered, by route and status.")
        self.images = Counter("pmal_images_total", "Images: known, unknown, bad, or dropped unanswered.")
        self.reloads = Counter("pmal_reloads_total", "Reloads of the model, by result.")
        self.seconds = Histogram(
            "pmal_predict_seconds", "Time to answer /v1/predict, body included.", SECONDS
        )
        self.batches = Histogram("pmal_batch_images", "Images that the network saw at once.", SIZES)
        about = "Resident memory of this process."
        self.gauges = [Gauge("process_resident_memory_bytes", about, resident_bytes)]

    def text(self) -> str:
        """What Prometheus reads.

        >>> metrics = Metrics()
        >>> metrics.images.add(2, result="known")
        >>> 'pmal_images_total{result="known"} 2' in metrics.text().splitlines()
        True
        """
        parts: Sequence[_Figure] = (
            self.requests,
            self.images,
            self.reloads,
            self.seconds,
            self.batches,
            *self.gauges,
        )
        return "".join(f"{line}\n" for part in parts for line in part.lines())


def resident_bytes() -> float | None:
    """Of this process, where the system says it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    r"""
    >>> _escape('a "b"\n')
    'a \\"b\\"\\n'
    """
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
