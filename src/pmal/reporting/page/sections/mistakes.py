"""The section of a run's report that shows wrong answers: the most confident mistakes of each kind."""

import math

import numpy as np

from pmal.reporting.page.answers import answer_name, figures, file_name, truth_name
from pmal.reporting.page.document import Gallery, Picture, Section
from pmal.reporting.page.numbers.run_numbers import Bools, Floats, Ints
from pmal.reporting.page.pictures import Album
from pmal.reporting.page.tested import Measured, RunFacts, unseen

MOST = 24
"""Largest number of pictures of each kind."""


def mistakes_section(tested: Measured, facts: RunFacts, album: Album) -> Section:
    """Return unknown images that were accepted, and known ones that were rejected or confused."""

    def gallery(title: str, wrong: Bools, known_first: bool) -> Gallery:
        found = most_telling(wrong, _p_values(tested), tested.model.scores[tested.score], known_first)
        note = f"{len(found):,} of {int(wrong.sum()):,}"
        pictures = [_picture(tested, int(i), facts, album) for i in found]
        order = "Most confidently known first" if known_first else "Most confidently unknown first"
        return Gallery(title, note, [(order, pictures)])

    blocks = [gallery(*kind) for kind in _kinds(tested) if kind[1].any()]
    lead = "Test images with a wrong answer: what each is, how unknown it looks by the score that decides (or"
    lead += " by the typicality, if that is the reason), its p-value (small: known images rarely look so),"
    lead += " and after the arrow the answer."
    return Section("mistakes", "Mistakes", lead if blocks else "No test image has a wrong answer.", blocks)


def most_telling(wrong: Bools, p_values: Floats, scores: Floats, known_first: bool) -> Ints:
    """Return positions of the most confident mistakes: by p-value, ties by score.

    Args:
        wrong: which images have a wrong answer.
        p_values: of all images.
        scores: of all images.
        known_first: whether confident means confidently known, else confidently unknown.

    >>> wrong, p_values = np.array([True, False, True, True]), np.array([0.2, 0.9, 0.7, 0.7])
    >>> most_telling(wrong, p_values, np.array([3.0, 0.0, 2.0, 1.0]), known_first=True).tolist()
    [3, 2, 0]
    """
    found, sign = np.flatnonzero(wrong), 1 if known_first else -1
    levels = np.nan_to_num(scores[found], nan=math.inf, posinf=math.inf, neginf=-math.inf)
    order: Ints = np.lexsort((sign * levels, -sign * np.nan_to_num(p_values[found])))
    return found[order][:MOST]


def _kinds(tested: Measured) -> list[tuple[str, Bools, bool]]:
    """Return title and images of each kind of mistake, and whether confidently known ones come first."""
    is_known = np.arange(len(tested.model.nearest)) < len(tested.known)
    confused = is_known.copy()
    confused[is_known] = ~tested.correct
    if tested.decided is None:
        return [("Known images taken for another class", confused, True)]
    accepted = tested.decided.answer >= 0
    return [
        ("Unknown images accepted as known", ~is_known & accepted, True),
        ("Known images rejected as unknown", is_known & ~accepted, False),
        ("Known images accepted as another class", confused & accepted, True),
    ]


def _picture(tested: Measured, i: int, facts: RunFacts, album: Album) -> Picture:
    truth, answer = truth_name(tested, i, facts), answer_name(tested, i, facts)
    alt = f"{truth}, answered {answer}: {file_name(tested, i)}"
    place = album.place(i)
    lines = [*unseen(place, file_name(tested, i)), truth, *figures(tested, i), f"→ {answer}"]
    return Picture(album.name, place, alt, lines, "wrong")


def _p_values(tested: Measured) -> Floats:
    if tested.decided is None:
        return np.full(len(tested.model.nearest), math.nan)
    return tested.decided.p_values
