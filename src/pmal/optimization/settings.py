"""The settings of the second training."""

from dataclasses import dataclass
from typing import Annotated

from pmal.config import Checked, Count, Within


@dataclass(frozen=True)
class OneOf:
    """The names that a setting may have."""

    names: tuple[str, ...]

    def allows(self, value: str) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return " or ".join(self.names)


@dataclass(frozen=True)
class OptimizationConfig(Checked):
    """The second training, which pulls samples to their class's prototypes and away from the others'."""

    per_class: Count = 10
    """Prototypes per class."""
    margin: Annotated[float, Within(0)] = 0.5
    """By how much a sample shall be nearer to its own class's prototypes than to any other's (0 to 2)."""
    weight: Annotated[float, Within(0)] = 1.0
    """Weight of the prototype loss beside the cross entropy."""
    distance: Annotated[str, OneOf(("point-to-set", "nearest"))] = "point-to-set"
    """point-to-set (attention over a class's prototypes) or nearest (the nearest prototype alone)."""
    init: Annotated[str, OneOf(("warm", "scratch"))] = "warm"
    """warm (from the first classifier) or scratch (from new random weights)."""
    refresh: Annotated[int, Within(0)] = 0
    """Prototypes embedded anew at each step, in turn. 0: all up to two batches of them, else one batch."""
