import re

import numpy as np
import pytest

from pmal.reporting.page.numbers.run_numbers import score_histogram
from pmal.reporting.page.numbers.threshold_numbers import accepted_along
from pmal.reporting.page.still import draw_still


def still_of(known, unknown, threshold):
    histogram = score_histogram(known, unknown, threshold)
    edges = histogram["edges"]
    accepted = accepted_along(known, unknown, (edges[0], edges[-1]), threshold)
    return draw_still({"name": "logit", "histogram": histogram, "accepted": accepted})


def test_the_picture_stays_within_its_frame_and_says_the_shares():
    known, unknown = np.linspace(0, 1, 100), np.linspace(0.5, 2, 60)
    found = still_of(known, unknown, 0.9)
    for path in (found.known, found.unknown):
        assert all(0 <= float(number) <= 100 for number in re.findall(r"-?[\d.]+", path))
    assert 0 < found.threshold < 100
    assert any("Of known test images 90.0 % are accepted, 10.0 % rejected." in line for line in found.lines)
    assert any("Of unknown test images 26.7 % are accepted, 73.3 % rejected." in line for line in found.lines)
    assert found.known.endswith("Z"), "known images are an area"
    assert "Z" not in found.unknown, "unknown ones are lines: not a color alone tells them apart"


@pytest.mark.parametrize("unknown", [None, np.zeros(0)])
def test_without_unknown_images(unknown):
    found = still_of(np.linspace(0, 1, 100), unknown, 0.9)
    assert found.unknown == ""


def test_without_a_threshold():
    found = still_of(np.linspace(0, 1, 100), None, None)
    assert found.threshold is None
    assert found.lines[-1] == "There is no single threshold to show."
