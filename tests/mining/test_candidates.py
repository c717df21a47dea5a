import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.mining.candidates import select_candidates
from tests.reference import mining as reference

# Eighths: many ties, and no r that lies at the threshold by rounding alone.
LOG_R = st.integers(-24, 0).map(lambda n: n / 8)
SAMPLES = st.lists(st.tuples(LOG_R, st.integers(0, 3)), min_size=1, max_size=40)


@settings(deadline=None)
@given(SAMPLES, st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]), st.integers(0, 6))
def test_is_the_transcription(samples, epsilon, at_least):
    log_r, labels = zip(*samples, strict=True)
    mask = select_candidates(log_r, labels, epsilon=epsilon, at_least=at_least)
    assert mask.tolist() == reference.select_candidates(log_r, labels, epsilon, at_least)


@settings(deadline=None)
@given(st.lists(st.floats(-700, 0), min_size=1, max_size=30), st.floats(0, 1), st.integers(0, 9))
def test_the_best_are_kept(log_r, epsilon, at_least):
    mask = select_candidates(log_r, [0] * len(log_r), epsilon=epsilon, at_least=at_least)
    kept, rest = np.array(log_r)[mask.numpy()], np.array(log_r)[~mask.numpy()]
    assert mask.sum() >= max(1, min(at_least, len(log_r)))
    assert not len(rest) or kept.min() >= rest.max()


def test_r_that_underflows_is_still_compared():
    log_r = [-2000.0, -2000.2, -2000.4]
    assert select_candidates(log_r, [0, 0, 0], epsilon=0.7, at_least=1).tolist() == [True, True, False]


def test_a_quality_of_zero_is_a_number():
    log_r = [-math.inf, -1.0, -math.inf]
    assert select_candidates(log_r, [0, 0, 1], at_least=1).tolist() == [False, True, True]


def test_equal_samples_fill_up_in_their_order():
    log_r = [-9.0, 0.0, -9.0, -9.0]
    assert select_candidates(log_r, [0] * 4, at_least=2).tolist() == [True, True, False, False]


def test_epsilon_one_keeps_the_best_and_its_equals():
    log_r = [-0.5, -0.1, -0.1, -0.3]
    assert select_candidates(log_r, [0] * 4, epsilon=1.0, at_least=1).tolist() == [False, True, True, False]


def test_takes_tensors_of_any_width_and_read_only_arrays():
    log_r = np.log(np.array([1.0, 0.9, 0.2]))
    log_r.setflags(write=False)
    labels = np.zeros(3, dtype=np.uint8)
    expected = [True, True, False]
    assert select_candidates(log_r, labels, at_least=1).tolist() == expected
    assert select_candidates(torch.tensor(log_r.copy()).float(), labels, at_least=1).tolist() == expected
    assert select_candidates(log_r.astype(">f8"), labels.astype(">i4"), at_least=1).tolist() == expected


def test_no_samples_no_candidates():
    assert select_candidates([], []).tolist() == []


@pytest.mark.parametrize(
    ("log_r", "labels", "options", "error", "message"),
    [
        ([0.0, math.nan], [0, 0], {}, DataError, "nan for sample 1"),
        ([math.inf, 0.0], [0, 0], {}, DataError, "inf for sample 0"),
        ([0.0, 0.0], [0], {}, DataError, "labels: 1 rows for 2 samples"),
        ([0.0, 0.0], [0, -1], {}, DataError, "sample 1: its label is negative"),
        ([0.0, 0.0], [0.0, 1.0], {}, DataError, "labels: expected a vector of integers, got float64"),
        ([[0.0]], [0], {}, DataError, "log_r: expected a vector"),
        (["a"], [0], {}, DataError, "log_r: expected real numbers"),
        ([0.0], [0], {"epsilon": 1.01}, UsageError, "epsilon=1.01"),
        ([0.0], [0], {"epsilon": -0.1}, UsageError, "epsilon=-0.1"),
        ([0.0], [0], {"epsilon": math.nan}, UsageError, "epsilon=nan"),
        ([0.0], [0], {"at_least": -1}, UsageError, "at_least=-1"),
    ],
)
def test_bad_input_is_named(log_r, labels, options, error, message):
    with pytest.raises(error, match=message) as caught:
        select_candidates(log_r, labels, **options)
    assert "\n" not in str(caught.value)
