"""Numbers to names: what stands in an answer."""

import math

import pytest

from pmal.serving.answers.answer_rows import Row, describe_rows


def test_an_unknown_image_names_the_class_that_it_is_nearest_to():
    rows = [
        Row("a.png", -1, 0, 2.0, 1.0, 0.9, 3.0, 4.0, 0.01, []),
        Row("b.png", 0, 0, math.inf, math.inf, None, -math.inf, math.inf, math.nan, []),
    ]
    unknown, known = describe_rows(("ant", "bee", "cow"), rows)
    assert (unknown["class"], unknown["known"], unknown["nearest"]) == ("unknown", False, "ant")
    assert (unknown["score"], unknown["threshold"], unknown["probability"]) == (2.0, 1.0, 0.9)
    assert (known["class"], known["known"], known["nearest"]) == ("ant", True, "ant")
    assert (known["score"], known["threshold"], known["probability"]) == ("inf", "inf", None)
    assert (unknown["typicality"], unknown["typicality_threshold"], unknown["p_value"]) == (3.0, 4.0, 0.01)
    assert [known[name] for name in ("typicality", "typicality_threshold", "p_value")] == [None] * 3


@pytest.mark.parametrize(
    ("label", "far", "words"),
    [
        (0, 1.0, None),
        (-1, 1.0, "nearest to ant, but not near enough"),
        (-1, 2.5, "unlike any training image, whatever class it is near to"),
        (-1, math.inf, "unlike any training image, whatever class it is near to"),
        (-1, math.nan, "unlike any training image, whatever class it is near to"),
    ],
)
def test_why_an_image_is_unknown(label, far, words):
    [row] = describe_rows(("ant", "bee"), [Row("a.png", label, 0, 2.0, 1.0, 0.9, far, 2.0, 0.01, [])])
    assert row["because"] == words
