"""Calibration by simulation and against loops; the best threshold against trying them all."""

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import f1_score

from pmal.errors import DataError, UsageError
from pmal.rejection.calibration import thresholds as module
from pmal.rejection.calibration.thresholds import (
    Threshold,
    accepted_range,
    best_f1_threshold,
    check_fdr,
    conformal_p_values,
    conformal_threshold,
    decide,
    discoveries,
    per_class_thresholds,
    promise,
    samples_needed,
)
from pmal.reporting.metrics import macro_f1
from tests.reference import thresholds as reference

INF, NAN = math.inf, math.nan
DRAWS = 3000

# Each with its distribution function, so that the coverage of a threshold is known and not estimated.
CONTINUOUS = {
    "uniform": (lambda rng, n: rng.random(n), lambda t: t),
    "normal": (lambda rng, n: rng.normal(size=n), norm.cdf),
    "heavy tail": (lambda rng, n: rng.pareto(0.5, size=n), lambda t: 1 - (1 + t) ** -0.5),
    "near zero": (lambda rng, n: 1e-12 * rng.exponential(size=n), lambda t: -math.expm1(-t * 1e12)),
}

scores_lists = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
shares = st.floats(0.01, 0.99).map(lambda share: round(share, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "accept"),
    [
        ("uniform", 19, 0.95),
        ("normal", 50, 0.95),
        ("heavy tail", 137, 0.95),
        ("near zero", 23, 0.8),
        ("uniform", 9, 0.5),
    ],
)
def test_mean_coverage_lies_between_accept_and_one_rank_more(name, n, accept):
    """The finite-sample guarantee, and that it is not bought with a threshold larger than needed."""
    draw, distribution = CONTINUOUS[name]
    rng = np.random.default_rng(n)
    thresholds = [conformal_threshold(draw(rng, n), accept) for _ in range(DRAWS)]
    assert all(threshold.guaranteed for threshold in thresholds)
    coverage = np.array([distribution(threshold.value) for threshold in thresholds])
    error = 4 * coverage.std() / math.sqrt(DRAWS)
    assert accept - error <= coverage.mean() <= accept + 1 / (n + 1) + error
    assert error < 0.02


def test_coverage_of_drawn_test_samples_through_the_decision():
    rng = np.random.default_rng(0)
    accepted = []
    for _ in range(DRAWS):
        threshold = conformal_threshold(rng.normal(size=39), accept=0.9)
        accepted.append(decide(np.zeros(20, int), rng.normal(size=20), threshold.value) == 0)
    assert 0.9 - 0.006 < np.mean(accepted) < 0.9 + 1 / 40 + 0.006


@pytest.mark.parametrize("levels", [2, 5, 30])
def test_ties_only_add_to_the_coverage(levels):
    rng = np.random.default_rng(levels)
    values = [conformal_threshold(rng.integers(levels, size=29), 0.9).value for _ in range(DRAWS)]
    coverage = (np.array(values) + 1) / levels
    assert coverage.mean() >= 0.9 - 4 * coverage.std() / math.sqrt(DRAWS)


def test_coverage_per_class_where_the_global_threshold_fails_a_class():
    """Class k has scores around k, and is a (k + 1)-th as frequent as class 0."""
    rng, weights = np.random.default_rng(7), np.array([6, 3, 2]) / 11
    own, pooled = np.zeros((DRAWS, 3)), np.zeros((DRAWS, 3))
    for i in range(DRAWS):
        predictions = rng.choice(3, size=200, p=weights)
        scores = rng.normal(size=200) + predictions
        thresholds = per_class_thresholds(scores, predictions, 3, accept=0.9)
        assert all(threshold.guaranteed and not threshold.pooled for threshold in thresholds)
        own[i] = norm.cdf([threshold.value - k for k, threshold in enumerate(thresholds)])
        pooled[i] = norm.cdf(conformal_threshold(scores, 0.9).value - np.arange(3))
    error = 4 * own.std(axis=0) / math.sqrt(DRAWS)
    assert (own.mean(axis=0) >= 0.9 - error).all()
    assert (own.mean(axis=0) <= 0.9 + 11 * np.array([1 / 6, 1 / 3, 1 / 2]) / 150 + error).all()
    assert pooled.mean(axis=0)[2] < 0.75


@given(scores_lists, shares)
def test_against_trying_every_score(scores, accept):
    expected = reference.conformal(scores, Fraction(str(accept)))
    found = conformal_threshold(scores, accept)
    assert (found.value, found.samples, found.accept) == (expected, len(scores), accept)
    assert found.guaranteed == (expected < INF) == (len(scores) >= samples_needed(accept))


@given(scores_lists, shares, shares)
def test_accepting_more_takes_a_larger_threshold(scores, one, other):
    low, high = (conformal_threshold(scores, accept).value for accept in sorted((one, other)))
    assert low <= high


@given(scores_lists, shares, st.floats(-1e6, 1e6), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_a_shift_moves_along(scores, accept, shift, random):
    expected = conformal_threshold(scores, accept)
    moved = [score + shift for score in scores]
    random.shuffle(moved)
    assert conformal_threshold(moved, accept) == replace(expected, value=expected.value + shift)


def test_shares_are_taken_as_written():
    """In floating point, 100 * 0.07 is above 7 and 100 * 0.29 below 29."""
    ranks = np.arange(1, 100)
    for percent in range(1, 100):
        assert conformal_threshold(ranks, percent / 100).value == percent
        needed = samples_needed(percent / 100)
        assert needed * 100 >= (needed + 1) * percent
        assert (needed - 1) * 100 < needed * percent


def test_too_few_samples_accept_all_and_say_how_many_are_needed():
    few = conformal_threshold(np.arange(18.0), accept=0.95)
    assert (few.value, few.guaranteed, few.samples) == (INF, False, 18)
    assert "needs 19 known samples, not 18" in few.note
    assert decide([0, 1, 2], [1e300, NAN, INF], few.value).tolist() == [0, -1, -1]
    enough = conformal_threshold(np.arange(19.0), accept=0.95)
    assert (enough.value, enough.guaranteed) == (18.0, True)
    assert few.accepted_range is None


def test_the_note_says_the_average_the_range_and_warns_where_it_is_wide():
    few, many = (conformal_threshold(np.arange(n), 0.95).note for n in (19, 86))
    assert few == (
        "accepts at least 95 % of known images on average; with 19 held-out images, this threshold accepts "
        "85.4 to 99.7 % (90 % range); few held-out images: raise data.held_out, or add images"
    )
    assert many == (
        "accepts at least 95 % of known images on average; with 86 held-out images, this threshold accepts "
        "91.2 to 98.4 % (90 % range)"
    )
    assert "at least 99.9 % of" in conformal_threshold(np.arange(5000), 0.999).note


def test_the_promise_of_classes_gives_the_widest_range():
    """That of 42 images: with 33, the threshold is their largest score, and the range is narrower."""
    thresholds = per_class_thresholds(np.arange(95.0), [0] * 33 + [1] * 42 + [2] * 20, 3)
    narrower = promise(thresholds[:2])
    guaranteed, note = promise(thresholds)
    assert guaranteed
    assert note == (
        "accepts at least 95 % of the known images taken for each class, on average; "
        "the threshold of the least certain class, with 20 held-out images, "
        "accepts 86.1 to 99.7 % (90 % range); "
        "few held-out images: raise data.held_out, or add images"
    )
    assert narrower[1].endswith("class, with 42 held-out images, accepts 89.2 to 99.1 % (90 % range)")
    assert promise(thresholds[:1]) == (True, thresholds[0].note)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "accept"), [(19, 0.95), (42, 0.95), (300, 0.95), (23, 0.8), (9, 0.5)])
def test_the_range_covers_nine_tenths_of_simulated_calibrations(n, accept):
    """The scores are uniform, so that the share below a threshold is its value."""
    values = np.random.default_rng(n).random((10_000, n))
    found = [conformal_threshold(row, accept) for row in values]
    low, high = found[0].accepted_range
    shares = np.array([threshold.value for threshold in found])
    error = 4 * math.sqrt(0.05 * 0.95 / 10_000)
    assert abs((shares < low).mean() - 0.05) < error
    assert abs((shares > high).mean() - 0.05) < error


@given(st.integers(1, 120).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))), st.floats(0.5, 0.99))
@settings(max_examples=60)
def test_the_range_against_binomial_sums(place, level):
    assert accepted_range(*place, level) == pytest.approx(reference.accepted_range(*place, level), abs=1e-9)


def test_the_range_of_a_threshold_is_that_of_its_rank():
    """In each case the rank is counted, not computed."""
    for n, accept in ((19, 0.95), (42, 0.95), (99, 0.29), (137, 0.9)):
        found = conformal_threshold(np.arange(n), accept)
        assert found.accepted_range == accepted_range(int(found.value) + 1, n)


def test_nan_counts_as_most_unknown():
    scores = np.append(np.arange(37.0), [NAN, NAN])
    assert conformal_threshold(scores, 0.9).value == 35
    assert conformal_threshold(scores, 0.95) == Threshold(INF, 0.95, 39, guaranteed=False)
    assert "NaN or infinite" in conformal_threshold(scores, 0.95).note


def test_a_class_with_too_few_samples_gets_the_threshold_of_all():
    scores = np.concatenate([np.arange(40.0), 100 + np.arange(18.0)])
    thresholds = per_class_thresholds(scores, [0] * 40 + [2] * 18, 4)
    everything = conformal_threshold(scores)
    assert thresholds[0] == conformal_threshold(np.arange(40.0))
    assert thresholds[1:] == (replace(everything, guaranteed=False, pooled=True),) * 3
    assert everything.guaranteed
    assert "this class: fewer than 19 usable samples" in thresholds[2].note
    assert "all 58" in thresholds[2].note
    assert not thresholds[0].pooled


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 3), st.integers(-1, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0, -INF, INF, NAN])
        ),
        max_size=24,
    ),
    st.floats(-2.0, 3.0),
)
@settings(max_examples=200)
def test_best_f1_against_trying_every_threshold(samples, extra):
    samples = [*samples, (0, 0, extra), (-1, 0, 1.0)]
    labels, predictions, scores = map(list, zip(*samples, strict=True))
    threshold, best = reference.best_f1(labels, predictions, scores)
    found = best_f1_threshold(labels, predictions, scores)
    assert found.macro_f1 == pytest.approx(float(best), abs=1e-12)
    if threshold == -INF and -INF not in scores:  # nothing is accepted: the value stands below all scores
        assert found.value < min(score for score in scores if not math.isnan(score))
    else:
        assert found.value == threshold
    assert decide(predictions, scores, found.value).tolist() == reference.decide(
        predictions, scores, threshold
    )


@pytest.mark.parametrize("seed", range(4))
def test_best_f1_on_overlapping_scores(seed):
    """Distinct scores, against the loops and against two other implementations of the metric."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 6, size=150)
    guess = rng.integers(6, size=150)
    predictions = np.where((labels >= 0) & (rng.random(150) < 0.8), labels, guess)
    scores = rng.normal(size=150) + 1.5 * (labels == -1)
    found = best_f1_threshold(labels, predictions, torch.from_numpy(scores))
    threshold, best = reference.best_f1(labels.tolist(), predictions.tolist(), scores.tolist())
    assert (found.value, found.macro_f1) == (threshold, pytest.approx(float(best), abs=1e-12))
    answers = decide(predictions, scores, found.value)
    assert macro_f1(labels, answers) == pytest.approx(found.macro_f1, abs=1e-12)
    assert f1_score(labels, answers, average="macro") == pytest.approx(found.macro_f1, abs=1e-12)
    assert scores.min() < found.value < scores.max()


def test_best_f1_goes_through_the_samples_for_each_class_and_not_for_each_threshold(monkeypatch):
    counted, count = [], module._running_count

    def spy(flags):
        counted.append(len(flags))
        return count(flags)

    monkeypatch.setattr(module, "_running_count", spy)
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, 200, size=20_000)
    scores = rng.normal(size=20_000) + (labels == -1)
    best_f1_threshold(labels, np.maximum(labels, 0), scores)
    assert counted == [20_000] * (1 + 2 * 200)  # trying each threshold by itself takes minutes


def test_of_equal_thresholds_the_largest_wins():
    """Predicted unknown by the classifier itself: accepting the second sample changes nothing."""
    assert best_f1_threshold([0, -1, -1], [0, -1, 0], [0.1, 0.4, 0.8]).value == 0.4


def test_equal_means_are_equal_however_their_parts_add_up():
    """At 3 and at 5 the same F1 values stand at other classes, and their sums differ in the last digit."""
    labels, predictions = [0, 1, 1, 1, 2, 2, -1, 0], [0, 2, 1, 2, 0, 1, 2, 2]
    assert reference.best_f1(labels, predictions, range(8))[0] == 5
    assert best_f1_threshold(labels, predictions, range(8)).value == 5


def test_best_f1_may_be_to_reject_everything():
    found = best_f1_threshold([0, -1, -1], [1, 0, 1], [0.9, 0.1, 0.2])
    assert found.value < 0.1
    assert math.isfinite(found.value)
    assert decide([1, 0, 1], [0.9, 0.1, 0.2], found.value).tolist() == [-1, -1, -1]


def test_decide_by_one_threshold_or_one_per_class():
    predictions, scores = torch.tensor([0, 1, 1, 0, -1]), torch.tensor([0.5, 0.5, 0.75, NAN, 0.0])
    assert decide(predictions, scores, 0.5).tolist() == [0, 1, -1, -1, -1]
    assert decide(predictions, scores, [0.25, 0.75]).tolist() == [-1, 1, 1, -1, -1]
    assert decide(predictions, scores, INF).tolist() == [0, 1, 1, -1, -1]
    assert decide([], [], [0.5]).tolist() == []


def test_inputs_are_not_changed():
    labels, predictions, scores = np.array([0, -1, 0]), np.array([0, 0, 0]), np.array([NAN, 2.0, 1.0])
    given = [array.copy() for array in (labels, predictions, scores)]
    conformal_threshold(scores, 0.5)
    best_f1_threshold(labels, predictions, scores)
    decide(predictions, scores, 1.0)
    for before, after in zip(given, (labels, predictions, scores), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("accept", [0, 1, -0.1, 1.5, NAN])
def test_a_share_that_is_none_is_refused(accept):
    for call in (
        lambda: conformal_threshold([1.0], accept),
        lambda: per_class_thresholds([1.0], [0], 1, accept),
        lambda: samples_needed(accept),
    ):
        with pytest.raises(UsageError, match="accept is"):
            call()


@pytest.mark.parametrize(("scores", "reason"), [([], "empty"), ([NAN, NAN], "NaN"), ([INF, NAN], "NaN")])
def test_nothing_to_calibrate_on(scores, reason):
    labels = [0, -1][: len(scores)]
    for call in (
        lambda: conformal_threshold(scores),
        lambda: per_class_thresholds(scores, [0] * len(scores), 1),
        lambda: best_f1_threshold(labels, labels, scores),
    ):
        with pytest.raises(DataError, match=reason):
            call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: conformal_threshold([[0.1], [0.2]]), DataError, r"known_scores has shape \(2, 1\)"),
        (lambda: conformal_threshold(["low"]), DataError, "pass one number per sample"),
        (lambda: conformal_threshold([[0.1], [0.2, 0.3]]), DataError, "cannot be read"),
        (lambda: per_class_thresholds([0.1], [0, 0], 1), DataError, "predictions has 2 values"),
        (lambda: per_class_thresholds([0.1], [-1], 1), DataError, r"predictions\[0\] is -1"),
        (lambda: per_class_thresholds([0.1], [3], 3), UsageError, "num_classes is 3, .* class 3"),
        (lambda: best_f1_threshold([0, 1], [0, 1], [0.1, 0.2]), DataError, "use conformal_threshold"),
        (lambda: best_f1_threshold([-1, -1], [0, 1], [0.1, 0.2]), DataError, "known and unknown"),
        (lambda: best_f1_threshold([0, -1], [0.5, 1], [0.1, 0.2]), DataError, r"predictions\[0\] is 0.5"),
        (lambda: best_f1_threshold([0, -2], [0, 1], [0.1, 0.2]), DataError, r"labels\[1\] is -2"),
        (lambda: best_f1_threshold([0, -1, 0], [0, 1], [0.1, 0.2]), DataError, "labels has 3 values"),
        (lambda: best_f1_threshold([0, -1], [0], [0.1, 0.2]), DataError, "predictions has 1 values"),
        (lambda: decide([0], [0.1, 0.2], 0.5), DataError, "predictions has 1 values"),
        (lambda: decide([2], [0.1], [0.5, 0.5]), UsageError, "2 thresholds for classes up to 2"),
        (lambda: decide([-1], [0.1], []), UsageError, "0 thresholds"),
        (lambda: decide([0], [0.1], NAN), UsageError, "pass their values"),
        (lambda: decide([0], [0.1], conformal_threshold([0.1])), UsageError, "pass their values"),
        (lambda: decide([INF], [0.1], 0.5), DataError, "is inf"),
        (lambda: accepted_range(3, 2), UsageError, "rank 3 of 2, level 0.9: pass a rank"),
        (lambda: accepted_range(1, 2, 1.0), UsageError, "a level below 1"),
    ],
)
def test_what_does_not_fit_together_is_refused_on_one_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_decision_loads_no_scipy():
    """It takes a while, and only the words about a threshold need it."""
    code = "import sys; from pmal.rejection.calibration.thresholds import decide; decide([0], [0.1], 0.5)"
    code += "; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_needs_no_torch():
    """Whoever has arrays only can decide without loading a deep learning library."""
    code = "import sys, pmal.rejection.calibration.thresholds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(-1, 10))
def test_a_p_value_is_the_share_of_known_scores_at_or_above(known, score):
    expected = (1 + sum(value >= score for value in known)) / (len(known) + 1)
    assert conformal_p_values(known, [score]).tolist() == [expected]


def test_p_values_of_broken_samples_are_the_smallest():
    assert conformal_p_values([1.0, 2.0, 3.0], [np.nan, np.inf]).tolist() == [0.25, 0.25]


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=20, max_size=60),
    st.lists(st.floats(0, 1), min_size=1, max_size=10),
    st.sampled_from([0.9, 0.8, 0.5]),
)
def test_a_sample_is_rejected_exactly_where_its_p_value_is_small(known, scores, accept):
    threshold = conformal_threshold(known, accept).value
    rejected = conformal_p_values(known, scores) <= round(1 - accept, 12)
    assert rejected.tolist() == [score > threshold for score in scores]


def test_discoveries_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.integers(1, 11, rng.integers(1, 12)) / 10 * rng.choice([1, 0.05])
        fdr, order = rng.choice([0.05, 0.2, 0.5]), np.sort(p)
        kept = [k for k in range(1, len(p) + 1) if order[k - 1] <= fdr * k / len(p)]
        expected = p <= order[max(kept) - 1] if kept else np.zeros(len(p), bool)
        assert discoveries(p, fdr).tolist() == expected.tolist()


def test_the_share_of_known_samples_among_discoveries_is_bounded():
    """Simulated as it is used: one calibration set for all samples of a batch, a third of them unknown."""
    rng, fdr, found = np.random.default_rng(1), 0.2, []
    for _ in range(2000):
        known, new = rng.normal(size=200), rng.normal(size=30)
        new[:10] += 4
        called = discoveries(conformal_p_values(known, new), fdr)
        found.append(called[10:].sum() / max(called.sum(), 1))
    assert np.mean(found) <= fdr
    assert np.mean(found) > 0.05  # not by calling nothing unknown


def test_a_share_that_no_p_value_reaches_is_refused_with_one_that_does():
    """Else every sample would be called known without a word, noise as well."""
    for held_out in (19, 36, 99, 1234):
        least = conformal_p_values(np.zeros(held_out), [1.0])
        with pytest.raises(UsageError, match=rf"below 1/{held_out + 1}, .*: pass [0-9.]+ or more") as caught:
            check_fdr(0.99 * least[0], held_out)
        advised = float(str(caught.value).split("pass ")[1].split()[0])
        check_fdr(advised, held_out)
        assert discoveries(least, advised).all()


@pytest.mark.parametrize("fdr", [0, 1, -0.1, np.nan, "a"])
def test_a_false_discovery_rate_is_a_share(fdr):
    with pytest.raises(UsageError, match=r"fdr is .*: pass a share above 0 and below 1"):
        discoveries([0.1], fdr)
