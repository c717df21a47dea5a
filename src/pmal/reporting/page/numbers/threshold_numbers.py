"""The shares of test images that other thresholds would accept, along the axis of a score.

N known images, M unknown ones.
"""

import math
from typing import Any

import numpy as np

from pmal.reporting.page.numbers.run_numbers import Floats, rounded

STEPS = 120


def accepted_along(
    known_N: Floats, unknown_M: Floats | None, axis: tuple[float, float], stored: float | None
) -> dict[str, Any] | None:
    """Return the shares accepted at thresholds along an axis, with the stored one at `start`.

    None: there is no stored threshold.

    Args:
        known_N: scores of known images.
        unknown_M: scores of unknown images. None: there are none.
        axis: its two ends.
        stored: the stored threshold.

    >>> found = accepted_along(np.array([0.1, 0.4]), np.array([0.4, 0.9]), (0.0, 1.0), 0.4)
    >>> found["at"][found["start"]], found["known"][found["start"]], found["unknown"][found["start"]]
    (0.4, 1.0, 0.5)
    """
    if stored is None or not math.isfinite(stored):
        return None
    levels = np.union1d(np.linspace(*axis, STEPS + 1), [stored])
    return {
        "at": [float(f"{level:.6g}") for level in levels],
        "known": _accepted(known_N, levels),
        "unknown": None if unknown_M is None else _accepted(unknown_M, levels),
        "start": int(np.searchsorted(levels, stored)),
    }


def _accepted(scores: Floats, levels: Floats) -> list[float | None]:
    rising = np.sort(np.where(np.isnan(scores), math.inf, scores))
    return rounded(np.searchsorted(rising, levels, side="right") / max(1, len(rising)))
