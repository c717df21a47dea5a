"""Numbers to names: what stands in an answer."""

import math

from pmal.serving.answer_rows import Row, describe_rows


def test_an_unknown_image_names_the_class_that_it_is_nearest_to():
    rows = [Row("a.png", -1, 0, 2.0, 1.0, 0.9, []), Row("b.png", 0, 0, math.inf, math.inf, None, [])]
    unknown, known = describe_rows(("ant", "bee", "cow"), rows)
    assert (unknown["class"], unknown["known"], unknown["nearest"]) == ("unknown", False, "ant")
    assert (unknown["score"], unknown["threshold"], unknown["probability"]) == (2.0, 1.0, 0.9)
    assert (known["class"], known["known"], known["nearest"]) == ("ant", True, "ant")
    assert (known["score"], known["threshold"], known["probability"]) == ("inf", "inf", None)
