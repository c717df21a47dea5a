"""Figures for Prometheus, by its own client library."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client import generate_latest as text_of

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Metrics:
    """All figures of one service."""

    def __init__(self) -> None:
        self.registry = of = CollectorRegistry()
        ProcessCollector(registry=of)
        self.requests = Counter(
            "pmal_requests", "Requests answered, by route and status.", ("route", "status"), registry=of
        )
        self.images = Counter(
            "pmal_images", "Images: known, unknown, bad, or dropped unanswered.", ("result",), registry=of
        )
        self.reloads = Counter("pmal_reloads", "Reloads of the model, by result.", ("result",), registry=of)
        self.seconds = Histogram(
            "pmal_predict_seconds", "Time to answer /v1/predict, body included.", buckets=SECONDS, registry=of
        )
        self.batches = Histogram(
            "pmal_batch_images", "Images that the network saw at once.", buckets=SIZES, registry=of
        )
        self.model = Info("pmal_model", "The model that answers.", registry=of)

    def watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        """Add a value that is asked for when somebody looks."""
        Gauge(name, about, registry=self.registry).set_function(read)

    def text(self) -> str:
        """Return what Prometheus reads.

        >>> metrics = Metrics()
        >>> metrics.images.labels("known").inc(2)
        >>> 'pmal_images_total{result="known"} 2.0' in metrics.text().splitlines()
        True
        """
        return text_of(self.registry).decode()
