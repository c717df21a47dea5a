"""The conformal test martingale: against loops, its false alarms, and the changes that it finds."""

import math

import numpy as np
import pytest

from pmal.errors import DataError, UsageError
from pmal.rejection.calibration.thresholds import conformal_p_values, conformal_threshold, rejected_levels
from pmal.rejection.open_world.martingale import Jumper, Ranks, levels
from pmal.rejection.open_world.traffic_watch import TrafficWatch
from tests.reference import martingale as reference

HELD_OUT = 60


def answers_of(seed, count, shift=0.0, held_out=HELD_OUT):
    """P-values of answers to known images, the later half of which may look more unknown."""
    random = np.random.default_rng(seed)
    scores = random.normal(size=count)
    scores[count // 2 :] += shift
    return conformal_p_values(random.normal(size=held_out), scores)


@pytest.mark.parametrize("lowest", [1, 4])
def test_ranks_are_those_of_the_loops(lowest):
    random = np.random.default_rng(0)
    given = random.integers(lowest, 12, size=50).tolist()
    uniforms = np.random.default_rng(3).random(50)
    ranks = Ranks(10, lowest, seed=3)
    found = [ranks.next(level) for level in given]
    np.testing.assert_allclose(found, reference.ranks(given, 10, lowest, uniforms), rtol=1e-12)


def test_the_capital_is_the_mean_over_all_ways_to_bet():
    p_values = np.random.default_rng(0).random(7).tolist()
    jumper = Jumper()
    for count, p in enumerate(p_values, 1):
        assert math.exp(jumper.bet(p)) == pytest.approx(reference.capital(p_values[:count]), rel=1e-12)
    assert jumper.highest >= jumper.log_capital


def test_ranks_are_uniform_though_all_answers_share_one_held_out_set():
    """The p-values themselves are not: those of one small set lie where its accidents put them."""
    ranks, plain = [], []
    for seed in range(150):
        p_values = answers_of(seed, 40, held_out=9)
        one = Ranks(9, seed=seed)
        ranks.append([one.next(level) for level in levels(p_values, 9).tolist()])
        plain.append(p_values)
    means, plain_means = np.mean(ranks, axis=1), np.mean(plain, axis=1)
    # Of 40 independent uniform numbers the mean has a standard deviation of 0.046.
    assert abs(means.std() - math.sqrt(1 / 12 / 40)) < 0.012
    assert plain_means.std() > 0.07
    assert abs(np.mean(ranks) - 0.5) < 0.02


def test_false_alarms_of_a_thousand_runs_stay_below_the_promise():
    states = []
    for seed in range(1000):
        watch = TrafficWatch(HELD_OUT, accept=0.9, alarm=0.05, seed=seed)
        watch.observe(answers_of(seed, 60))
        states.append(watch.state())
    for name in ("known", "traffic"):
        assert sum(state[name]["alarm"] for state in states) <= 50 + 21  # three standard deviations of chance


def test_a_change_is_found():
    found = {"known": 0, "traffic": 0}
    for seed in range(20):
        watch = TrafficWatch(200, accept=0.95, alarm=0.01, seed=seed)
        watch.observe(answers_of(seed, 600, shift=1.0, held_out=200))
        for name in found:
            found[name] += watch.state()[name]["alarm"]
    assert found["known"] >= 18
    assert found["traffic"] >= 18


def test_state_counts_what_was_observed():
    watch = TrafficWatch(99, accept=0.95)
    assert watch.state()["rejection_rate"] is None
    watch.observe([0.05, 0.06])
    watch.observe([1.0])
    state = watch.state()
    assert (state["answered"], state["rejected"]) == (3, 1)
    assert state["expected_rejection_rate"] == 0.05
    assert state["p_value_tenths"] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(("samples", "accept"), [(19, 0.95), (18, 0.95), (40, 0.9), (101, 0.07)])
def test_what_is_rejected_is_what_the_threshold_rejects(samples, accept):
    known = np.random.default_rng(0).normal(size=samples)
    limit = conformal_threshold(known, accept).value
    scores = np.concatenate([known, known + 1e-9, [-9.0, 9.0]])
    found = levels(conformal_p_values(known, scores), samples) <= rejected_levels(samples, accept)
    assert found.tolist() == (scores > limit).tolist()


@pytest.mark.parametrize("bad", [[0.0], [1.01], [math.nan], [-0.5], [0.123], ["x"], [[0.5]]])
def test_what_is_no_p_value_of_this_model_is_refused(bad):
    with pytest.raises(DataError, match="p-value"):
        TrafficWatch(99).observe(bad)


def test_settings_out_of_range_are_refused():
    with pytest.raises(UsageError, match="alarm is 1"):
        TrafficWatch(99, alarm=1.0)
    with pytest.raises(UsageError, match="none is left"):
        TrafficWatch(0)
