"""The answers of a model for each image, ready for JSON. Imports no torch."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pmal._runtime.text import printable
from pmal.data.samples import UNKNOWN_NAME
from pmal.errors import UsageError

Member = tuple[str, int]
"""File and id of a prototype."""


class Row(NamedTuple):
    """The answer about one image, in numbers."""

    name: str
    label: int
    """-1: unknown."""
    nearest: int
    score: float
    limit: float
    probability: float | None
    """None: the class was added later, and the network has no output for it."""
    far: float
    far_limit: float
    p_value: float
    prototypes: list[dict[str, Any]]

    @property
    def is_far(self) -> bool:
        """Whether it is unlike every training image, whatever class it is near to."""
        return not self.far <= self.far_limit


def describe_rows(class_names: Sequence[str], rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the answers with names in place of numbers. Numbers that are not finite become text."""
    return [
        {
            "image": unicode_name(row.name),
            "class": class_names[row.label] if row.label >= 0 else UNKNOWN_NAME,
            "known": row.label >= 0,
            "nearest": class_names[row.nearest],
            "score": json_number(row.score),
            "threshold": json_number(row.limit),
            "probability": None if row.probability is None else json_number(row.probability),
            "typicality": json_number(row.far) if row.far > -math.inf else None,
            "typicality_threshold": json_number(row.far_limit) if row.far_limit < math.inf else None,
            "p_value": None if math.isnan(row.p_value) else row.p_value,
            "because": because(row, class_names[row.nearest]),
            "prototypes": row.prototypes,
        }
        for row in rows
    ]


def decide_together(blocks: Iterable[Sequence[dict[str, Any]]], fdr: float) -> list[list[dict[str, Any]]]:
    """Return all answers as one block, decided again: at most a share `fdr` of the unknown ones is known.

    Args:
        blocks: answers with a decision each.
        fdr: bound on the expected share of known images among those called unknown.

    Raises:
        UsageError: the model has no p-values.
    """
    from pmal.rejection.calibration.thresholds import discoveries

    answers = [answer for block in blocks for answer in block]
    p_values = [answer["p_value"] for answer in answers]
    if None in p_values:
        raise UsageError("--fdr needs p-values, and this model has no held-out images: leave it out")
    unknown = discoveries(p_values, fdr).tolist() if answers else []
    return [[_decided(answer, called) for answer, called in zip(answers, unknown, strict=True)]]


def fdr_note(blocks: Iterable[Sequence[dict[str, Any]]], fdr: float) -> str:
    """Return what is promised of answers that were decided together, and which of them may surprise.

    An image above its threshold is named all the same if too few of the batch look so unknown.

    >>> fdr_note([[{"known": True, "score": 3.5, "threshold": 3.0}]], 0.1).split("; ")[1]
    '1 above the threshold is named: too few look so unknown for --fdr 0.1'
    """
    promise = f"of the images called unknown, at most {fdr:g} are known ones, on average"
    answers = [answer for block in blocks for answer in block]
    count = sum(a["known"] and not float(a["score"]) <= float(a["threshold"]) for a in answers)
    named = f"{count:,} above the threshold {'is' if count == 1 else 'are'} named"
    return f"{promise}; {named}: too few look so unknown for --fdr {fdr:g}" if count else promise


def _decided(answer: dict[str, Any], unknown: bool) -> dict[str, Any]:
    words = answer["because"] or f"nearest to {answer['nearest']}, but rarely so far from it"
    return answer | {
        "class": UNKNOWN_NAME if unknown else answer["nearest"],
        "known": not unknown,
        "because": words if unknown else None,
    }


def because(row: Row, nearest: str) -> str | None:
    """Return why an image is unknown, in words. None: it is known."""
    if row.label >= 0:
        return None
    if row.is_far:
        return "unlike any training image, whatever class it is near to"
    return f"nearest to {nearest}, but not near enough"


def strongest_prototypes(
    members: Sequence[Member], weights: Sequence[float], top: int
) -> list[dict[str, Any]]:
    """Return the prototypes of a class with the largest weights, ties by rank.

    Args:
        members: file and id of each prototype, by rank.
        weights: of each prototype.
        top: number of prototypes at most.

    >>> strongest_prototypes([("a.png", 3), ("b.png", 7)], [0.25, 0.75], 1)
    [{'file': 'b.png', 'id': 7, 'weight': 0.75}]
    """
    order = sorted(range(len(members)), key=lambda rank: -weights[rank])[:top]
    return [
        {"file": members[rank][0], "id": members[rank][1], "weight": json_number(weights[rank])}
        for rank in order
    ]


def unicode_name(path: str) -> str:
    """Return the path itself, or a printable form if its bytes are not valid text."""
    with contextlib.suppress(UnicodeEncodeError):
        path.encode()
        return path
    return printable(path)


def json_number(value: float) -> float | str:
    """Return the number, or its text if it is not finite."""
    return value if math.isfinite(value) else str(value)
