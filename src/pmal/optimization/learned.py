"""What the stages that learn leave together."""

from collections.abc import Callable
from dataclasses import dataclass

from pmal.ensemble.classifier import Classifier
from pmal.ensemble.job import Job
from pmal.mining.prototypes import PrototypeSet


@dataclass(frozen=True)
class Learned:
    """The final network of a job, and what it was made of."""

    first: Classifier
    """The first classifier: a plain softmax to compare with, where the method trains a second time."""
    network: Classifier
    prototypes: PrototypeSet | None = None


Learn = Callable[[Job], Learned]
