"""What an image that looks like no training image adds to the score that decides.

Near score and typicality become one score, in the unit of the near one: near + unit w u^2, where u says how
many of its own units the typicality lies above that of a rare known image. The typicality of features, which
near unknown images differ in as well, is added as it is: near + unit u. A unit of a score is the distance
from the median of held-out known images to their 95 % quantile, divided by log 10: so much that an image
becomes e times as rare. So there is one threshold, one p-value and one promise, all but the rarest images
keep their near score, and an image that is far from everything is unknown whatever class it points to.

B images, n held-out known images.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

DECISION = "decision"
"""The name of the deciding score with the penalty in it, among other scores."""
START = math.log(10)
"""Units above a usual image, from which on typicality counts: one known image in 20 lies there.

Near unknown images are as typical as known ones. A penalty that begins earlier would only add noise to their
near score. Start, weight and square were compared on known classes (docs/method.md)."""
WEIGHT = 0.2
SMALLEST = 1e-6
"""The least unit of the typicality of a single class, relative to that of a usual image."""


@dataclass(frozen=True)
class Penalty:
    """The scale of the penalty, from held-out known images."""

    usual: float
    """The typicality of a usual known image: the median."""
    spread: float
    """The unit of the typicality."""
    unit: float
    """The unit of the near score."""
    linear: bool = False
    """Every unit counts alike, also below that of a usual image."""

    @classmethod
    def fit(cls, near_n: Tensor, far_n: Tensor, linear: bool = False) -> "Penalty | None":
        """Return the scale, or None if the scores of held-out images are too few or too alike to give one.

        A near score that is 0 for all of them, as with a single class, leaves the typicality to decide alone.

        >>> Penalty.fit(torch.arange(101.0), torch.arange(101.0)).usual
        50.0
        """
        (_, unit), (usual, spread) = _scale(near_n), _scale(far_n)
        if len(near_n) > 1 and not near_n.any():
            unit, linear = 1.0, True
            spread = spread or SMALLEST * max(usual, 1.0)  # known images are all alike: any other is far
        sound = len(near_n) == len(far_n) and unit > 0 and spread > 0
        return cls(usual, spread, unit, linear) if sound else None

    def __call__(self, far_B: Tensor) -> Tensor:
        """Return what is added to the near score, float64 (B,); infinite if the typicality is.

        Minus infinity stands for images whose typicality is not known: nothing is added.

        >>> Penalty(usual=10.0, spread=1.0, unit=0.5)(torch.tensor([3.0, 12.0, 10.0 + START + 5.0]))
        tensor([0.0000, 0.0000, 2.5000], dtype=torch.float64)
        """
        above_B = (far_B.double() - self.usual) / self.spread
        if self.linear:
            return self.unit * above_B.masked_fill(above_B == -math.inf, 0.0)
        return self.unit * WEIGHT * (above_B - START).clamp(min=0.0).square()

    def far_limit(self, room: Tensor) -> Tensor:
        """Return the typicality whose penalty is as large as the room that a near score has, float64 ().

        >>> limit = Penalty(usual=10.0, spread=1.0, unit=0.5).far_limit(torch.tensor(2.5))
        >>> round(float(limit) - START, 6)
        15.0
        """
        units = room.double().clamp(min=0.0) / self.unit
        return self.usual + self.spread * (units if self.linear else START + (units / WEIGHT).sqrt())


def _scale(scores: Tensor) -> tuple[float, float]:
    """Return the median and the unit; 0 for the unit if there is none."""
    finite = scores[scores.isfinite()].double()
    if len(finite) < 2:
        return 0.0, 0.0
    middle, high = torch.quantile(finite, torch.tensor([0.5, 0.95], dtype=torch.float64)).tolist()
    # If nineteen in twenty are alike, as saturated probabilities are, the largest stands for the quantile.
    return middle, ((high - middle) or (float(finite.amax()) - middle)) / math.log(10)
