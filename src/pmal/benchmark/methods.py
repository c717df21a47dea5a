"""What the benchmark has to know of a method beyond its name. A new method is entered here, and nowhere
else.

Its name comes from `pmal.pipeline.METHODS`; the score that it rejects by from
`rejection.building.default_score`, which is written into every record, so that tables ask the record.
"""

from pmal.config import RunConfig

LONG = "softmax-long"
"""In --methods: softmax of twice the epochs, as long as a method that trains a second time."""

SOFTMAX_FIRST = frozenset({"softmax", "openmax", "proser", "pmal"})
"""Methods whose `classifiers/N` are plain softmax classifiers: their trainings are shared."""

TRAINED_AGAIN = frozenset({"pmal", "proser"})
"""Methods that go on from a classifier with a second training of as many epochs."""

SOFTMAX_SECTIONS = ("data", "encoder", "training", "rejection")
"""Settings that a plain classifier has; others are left out of its name, so that all methods share it."""


def concerns(method: str, setting: str) -> bool:
    """Whether a setting can change the figures of a method."""
    return method not in ("softmax", "openmax") or setting.partition(".")[0] in SOFTMAX_SECTIONS


def method_names() -> tuple[str, ...]:
    """What --methods takes."""
    from pmal.pipeline import METHODS

    return (*METHODS, LONG)


def trainings_after(method: str) -> int:
    """Trainings of a run besides its softmax classifiers."""
    return int(method in TRAINED_AGAIN or method not in SOFTMAX_FIRST)


def shared_classifiers(config: RunConfig) -> int:
    """How many softmax classifiers a run needs."""
    return config.classifiers if config.method in SOFTMAX_FIRST else 0


def total_epochs(method: str, epochs: int) -> int:
    """Epochs behind the network that answers: what an equally long softmax has.

    >>> total_epochs("pmal", 100), total_epochs("softmax", 100)
    (200, 100)
    """
    return epochs * (2 if method in TRAINED_AGAIN else 1)


def epochs_text(method: str, epochs: int) -> str:
    return f"{epochs} + {epochs}" if method in TRAINED_AGAIN else str(epochs)
