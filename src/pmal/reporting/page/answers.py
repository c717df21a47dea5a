"""Words about one test image: its class, the model's answer, and the figures behind it.

Images are counted through both parts, known ones first.
"""

import math

from pmal.data.samples import UNKNOWN_NAME
from pmal.rejection.typicality.of_layers import TYPICALITY
from pmal.reporting.page.tested import Measured, RunFacts, short_name


def truth_name(tested: Measured, i: int, facts: RunFacts) -> str:
    """Return the class of an image, marked as unknown if the model does not know it."""
    n = len(tested.known)
    if i < n:
        return facts.class_names[int(tested.known.labels[i])]
    assert tested.unknown is not None
    return f"{UNKNOWN_NAME}: {facts.unknown_names[int(tested.unknown.labels[i - n])]}"


def answer_name(tested: Measured, i: int, facts: RunFacts) -> str:
    """Return the model's answer for an image. Without a threshold, it is the nearest class."""
    rejected = tested.answer is not None and tested.answer[i] < 0
    return UNKNOWN_NAME if rejected else facts.class_names[tested.model.nearest[i]]


def figures(tested: Measured, i: int) -> list[str]:
    """Return the score that decided about an image, and its p-value if there is one."""
    decided = tested.decided
    far = decided is not None and decided.answer[i] < 0 and not decided.typical[i]
    name = TYPICALITY if far else tested.score
    words = [f"{name} {float(tested.model.scores[name][i]):.3g}"]
    if decided is not None and not math.isnan(decided.p_values[i]):
        words.append(f"p {float(decided.p_values[i]):.2g}")
    return words


def file_name(tested: Measured, i: int) -> str:
    """Return the name that the report shows for the file of an image."""
    n, unknown = len(tested.known), tested.unknown
    return short_name(tested.known.name(i) if i < n or unknown is None else unknown.name(i - n))
