"""The joint result of the learning stages."""

from collections.abc import Callable
from dataclasses import dataclass

from pmal.ensemble.classifier import Classifier
from pmal.ensemble.job import Job
from pmal.mining.prototypes import PrototypeSet


@dataclass(frozen=True)
class Learned:
    """The final network of a job, and what it was trained from."""

    first: Classifier
    """The first classifier: if the method trains twice, a plain softmax to compare with."""
    network: Classifier
    prototypes: PrototypeSet | None = None


Learn = Callable[[Job], Learned]
