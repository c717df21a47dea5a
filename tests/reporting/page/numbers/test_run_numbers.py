import json

import numpy as np
import pytest

from pmal.reporting.metrics import auroc, oscr
from pmal.reporting.page.numbers.run_numbers import (
    confusion,
    open_set_curve,
    rounded,
    score_histogram,
    training_curves,
)


@pytest.fixture
def scores():
    random = np.random.default_rng(0)
    known, unknown = random.normal(size=900).round(2), random.normal(1.2, size=700).round(2)
    known[3], unknown[5] = np.nan, np.inf
    return random.random(900) < 0.9, known, unknown


def area(x, y):
    return float(np.trapezoid(y, x))


def test_areas_under_the_curves_are_the_metrics(scores):
    correct, known, unknown = scores
    curve = open_set_curve(correct, known, unknown)
    assert area(curve["unknown"], curve["known"]) == pytest.approx(auroc(known, unknown), abs=2e-3)
    assert area(curve["unknown"], curve["correct"]) == pytest.approx(oscr(correct, known, unknown), abs=2e-3)
    assert len(curve["known"]) < 260, "thousands of levels are thinned out"
    assert (curve["known"][0], curve["known"][-1], curve["unknown"][-1]) == (0, 1, 1)


def test_a_short_curve_is_exact():
    curve = open_set_curve(np.array([True, False]), np.array([0.1, 0.2]), np.array([0.2, 0.9]))
    assert curve == {
        "unknown": [0.0, 0.0, 0.5, 1.0],
        "known": [0.0, 0.5, 1.0, 1.0],
        "correct": [0.0, 0.5, 0.5, 0.5],
    }


@pytest.mark.parametrize("threshold", [None, 0.5, 40.0, float("inf")])
def test_a_histogram_counts_every_image_and_shows_the_threshold(scores, threshold):
    _, known, unknown = scores
    found = score_histogram(known, unknown, threshold)
    assert sum(found["known"]) == pytest.approx(1, abs=0.01)
    assert sum(found["unknown"]) == pytest.approx(1, abs=0.01)
    assert len(found["edges"]) == len(found["known"]) + 1
    if threshold is None or threshold == float("inf"):
        assert found["threshold"] is None
    else:
        assert found["edges"][0] <= found["threshold"] <= found["edges"][-1]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("known", [[0.0, 0.0], [np.inf, np.nan], [1.0]])
def test_a_histogram_of_equal_or_broken_scores(known):
    found = score_histogram(np.array(known), None, None)
    assert found["unknown"] is None
    assert sum(found["known"]) == pytest.approx(1)
    assert found["edges"][0] < found["edges"][-1]


def test_confusion_against_a_loop():
    random = np.random.default_rng(1)
    truth, answer = random.integers(-1, 5, 300), random.integers(-1, 8, 300)
    found = confusion(truth, answer, classes=[0, 2, 4], rows=5)
    expected = [[0] * 5 for _ in range(5)]
    for t, a in zip(truth.tolist(), answer.tolist(), strict=True):
        if t >= 0:
            expected[t][{0: 0, 2: 1, 4: 2, -1: 4}.get(a, 3)] += 1
    assert found == expected


def test_training_goes_on_after_an_interruption():
    line = {"stage": "classifier 0", "rate": 0.1, "loss": 1.0}
    events = [line | {"epoch": e} for e in (1, 2, 3)] + [{"stage": "classifier 0", "resumed_at_step": 7}]
    events += [line | {"epoch": e, "loss": float("nan")} for e in (2, 3, 4)]
    events += [{"stage": "mining", "warning": "x"}]
    [curve] = training_curves(events)
    assert curve["epoch"] == [1, 2, 3, 4]
    assert curve["loss"] == [1.0, None, None, None]


def test_json_has_no_nan():
    assert rounded([np.nan, 1 / 3], 2) == [None, 0.33]


def test_the_axis_covers_the_middle_of_all_images_to_six_digits():
    known, unknown = np.linspace(0, 1, 500), np.linspace(1, 2, 500)
    edges = score_histogram(known, unknown, 0.5)["edges"]
    low, high = np.quantile(np.concatenate([known, unknown]), [0.005, 0.995])
    np.testing.assert_allclose(edges, np.linspace(low, high, 41), rtol=1e-5)


def test_no_unknown_images_have_no_shares():
    assert score_histogram(np.arange(5.0), np.empty(0), None)["unknown"] == [0.0] * 40


def test_what_is_no_number_is_accepted_last_together_with_what_is_infinite():
    known, unknown = np.array([0.0, np.inf, 1.0]), np.array([2.0, np.nan])
    infinite = [np.where(np.isnan(part), np.inf, part) for part in (known, unknown)]
    correct = np.array([True, True, False])
    found = open_set_curve(correct, known, unknown)
    assert found == open_set_curve(correct, *infinite)
    assert found["known"] == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 1], abs=1e-4)
    assert found["unknown"] == [0, 0, 0, 0.5, 1]


def test_a_curve_of_few_points_keeps_them_however_near_they_lie():
    known = np.concatenate([np.zeros(2000), [1.0, 2.0, 3.0]])
    assert len(open_set_curve(np.ones(2003, dtype=bool), known, np.array([4.0]))["known"]) == 6


def test_images_of_no_row_are_not_counted():
    assert confusion(np.array([0, 7, -1]), np.array([0, 0, 0]), classes=[0], rows=2) == [[1, 0, 0], [0, 0, 0]]
