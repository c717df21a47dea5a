"""The histogram of a score as a picture without a script: known images as areas, unknown ones hatched."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pmal.reporting.page.document import Still

WIDTH, HEIGHT = 100.0, 40.0
HATCH = 1.0
"""Distance of two lines of the hatching."""


def draw_still(score: Mapping[str, Any]) -> Still:
    """Return the picture of the figure of a score, with the shares that its threshold accepts.

    Args:
        score: the figure's name, histogram and accepted shares.
    """
    histogram, edges = score["histogram"], score["histogram"]["edges"]
    top = max(max(histogram[kind] or [0.0]) for kind in ("known", "unknown")) or 1.0
    heights = {
        kind: [HEIGHT * math.sqrt(share / top) for share in histogram[kind] or []]
        for kind in ("known", "unknown")
    }
    limit = histogram["threshold"]
    place = None if limit is None else round(WIDTH * (limit - edges[0]) / (edges[-1] - edges[0]), 2)
    return Still(
        known=area_path(heights["known"]),
        unknown=hatch_path(heights["unknown"]),
        threshold=place,
        ends=(f"{edges[0]:.3g}", f"{edges[-1]:.3g}"),
        title=f"Distribution of {score['name']}",
        lines=[_legend(histogram), *_accepted_words(score["accepted"])],
    )


def area_path(heights: Sequence[float]) -> str:
    """Return the outline of adjacent bars as an SVG path.

    >>> area_path([20.0, 40.0])
    'M0,40V20.0H50.0V0.0H100.0V40Z'
    """
    steps = [f"V{HEIGHT - h:.1f}H{WIDTH * (i + 1) / len(heights):.1f}" for i, h in enumerate(heights)]
    return f"M0,{HEIGHT:g}{''.join(steps)}V{HEIGHT:g}Z" if heights else ""


def hatch_path(heights: Sequence[float]) -> str:
    """Return vertical lines that fill bars, as an SVG path. What is behind the bars stays visible.

    >>> hatch_path([20.0, 0.0]).count("M")
    50
    """
    lines = []
    for i in range(int(WIDTH / HATCH)):
        x = HATCH * (i + 0.5)
        height = heights[int(x / WIDTH * len(heights))] if heights else 0.0
        if height:
            lines.append(f"M{x:g},{HEIGHT:g}V{HEIGHT - height:.1f}")
    return "".join(lines)


def _legend(histogram: Mapping[str, Any]) -> str:
    if histogram["unknown"] is None:
        return "Filled: known test images."
    return "Filled: known test images. Upright lines: unknown test images."


def _accepted_words(accepted: Mapping[str, Any] | None) -> list[str]:
    if accepted is None:
        return ["There is no single threshold to show."]
    start = accepted["start"]
    words = [f"The stored threshold {accepted['at'][start]:.3g} is the dashed line."]
    for kind in ("known", "unknown"):
        if accepted[kind] is not None:
            share = round(100 * accepted[kind][start], 1)
            words.append(f"Of {kind} test images {share} % are accepted, {100 - share:.1f} % rejected.")
    return words
