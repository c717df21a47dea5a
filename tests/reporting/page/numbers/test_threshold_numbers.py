import numpy as np
import pytest

from pmal.reporting.page.numbers.threshold_numbers import STEPS, accepted_along


def test_shares_along_the_axis_against_a_loop():
    random = np.random.default_rng(0)
    known, unknown = random.normal(size=300), random.normal(1.0, size=200)
    known[0], unknown[0] = np.nan, np.inf
    found = accepted_along(known, unknown, (-2.0, 3.0), 0.7)
    assert len(found["at"]) == STEPS + 2, "the stored one among them"
    assert found["at"] == sorted(found["at"])
    assert found["at"][found["start"]] == 0.7
    for name, scores in (("known", known), ("unknown", unknown)):
        expected = [(scores <= level).mean() for level in found["at"]]
        assert found[name] == pytest.approx(expected, abs=0.011), "levels are written with six digits"
    assert found["known"][found["start"]] == pytest.approx((known <= 0.7).mean(), abs=1e-4)


@pytest.mark.parametrize("stored", [0.0, 1.0])
def test_a_threshold_at_an_end_of_the_axis_is_not_there_twice(stored):
    found = accepted_along(np.array([0.5]), np.array([0.5]), (0.0, 1.0), stored)
    assert len(found["at"]) == STEPS + 1
    assert found["at"][found["start"]] == stored


@pytest.mark.parametrize("stored", [None, float("inf"), float("nan")])
def test_no_stored_threshold_nothing_to_move(stored):
    assert accepted_along(np.array([0.5]), None, (0.0, 1.0), stored) is None


def test_no_unknown_images_and_no_images_at_all():
    assert accepted_along(np.array([0.5]), None, (0.0, 1.0), 0.5)["unknown"] is None
    assert set(accepted_along(np.zeros(0), np.zeros(0), (0.0, 1.0), 0.5)["known"]) == {0.0}
