import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score, roc_curve

from pmal.errors import DataError, UsageError
from pmal.reporting import metrics
from pmal.reporting.metrics import (
    accuracy,
    accuracy_interval,
    aupr_in,
    aupr_out,
    auroc,
    expected_calibration_error,
    fpr_at_tpr,
    macro_f1,
    open_set_metrics,
    oscr,
)
from tests.reference import metrics as reference

INF = math.inf


def _normal(seed, n, m, shift=1.0):
    rng = np.random.default_rng(seed)
    return rng.random(n) < 0.8, rng.normal(size=n), rng.normal(shift, size=(m,))


def _tied(seed, n, m):
    rng = np.random.default_rng(seed)
    return rng.random(n) < 0.5, rng.integers(4, size=n) / 4, rng.integers(1, 5, size=m) / 4


CASES = {
    "random": _normal(0, 200, 300),
    "one sided": _normal(1, 7, 500, shift=-2.0),
    "few levels": _tied(2, 150, 90),
    "all equal": (np.array([True, False, True]), np.full(3, 0.5), np.full(5, 0.5)),
    "one each, in order": (np.array([True]), np.array([0.2]), np.array([0.7])),
    "one each, reversed": (np.array([True]), np.array([0.7]), np.array([0.2])),
    "one each, tied": (np.array([False]), np.array([0.7]), np.array([0.7])),
}
INFINITE = {
    "inf on both sides": (
        np.array([True, False, True, True]),
        np.array([-INF, 0.0, INF, 0.3]),
        np.array([INF, 0.3, INF, 0.1]),
    ),
    "inf alone": (np.array([True, True]), np.array([INF, INF]), np.array([INF, -INF])),
}
finite_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
any_case = pytest.mark.parametrize("case", [*CASES.values(), *INFINITE.values()], ids=[*CASES, *INFINITE])


def _is_unknown(known, unknown):
    return np.repeat([0, 1], [len(known), len(unknown)]), np.concatenate([known, unknown])


# -- against other implementations


@pytest.fixture
def torchmetrics():
    """Imported where it is used: that takes as long as all other tests here."""
    from torchmetrics.functional import classification

    return classification


@finite_case
def test_auroc_is_that_of_scikit_learn(case):
    _, known, unknown = case
    target, score = _is_unknown(known, unknown)
    assert auroc(known, unknown) == pytest.approx(roc_auc_score(target, score), abs=1e-12)


@pytest.mark.slow
@finite_case
def test_auroc_is_that_of_torchmetrics(case, torchmetrics):
    _, known, unknown = case
    target, score = _is_unknown(known, unknown)
    rank = np.unique(score, return_inverse=True)[1] / len(score)  # in [0, 1]: others would be squashed
    theirs = torchmetrics.binary_auroc(torch.from_numpy(rank), torch.from_numpy(target)).item()
    assert auroc(known, unknown) == pytest.approx(theirs, abs=1e-6)


@finite_case
def test_aupr_is_the_average_precision_of_scikit_learn(case):
    _, known, unknown = case
    target, score = _is_unknown(known, unknown)
    assert aupr_out(known, unknown) == pytest.approx(average_precision_score(target, score), abs=1e-12)
    assert aupr_in(known, unknown) == pytest.approx(average_precision_score(1 - target, -score), abs=1e-12)


@finite_case
def test_fpr_is_read_off_the_roc_curve_of_scikit_learn(case):
    _, known, unknown = case
    target, score = _is_unknown(known, unknown)
    fpr, reached, _ = roc_curve(1 - target, -score, drop_intermediate=False)
    for tpr in (0.05, 0.5, 0.8, 0.95, 1.0):
        assert fpr_at_tpr(known, unknown, tpr) == pytest.approx(fpr[reached >= tpr][0], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_and_accuracy_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(-1, 5, size=(2, 60))
    predictions[predictions == seed - 1] = 7  # one class that is never predicted, one that is never a label
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert macro_f1(labels, predictions) == pytest.approx(expected, abs=1e-12)
    assert accuracy(labels, predictions) == sum(a == b for a, b in zip(labels, predictions, strict=True)) / 60


@pytest.mark.slow
@pytest.mark.parametrize("bins", [1, 8, 15])
def test_calibration_error_is_that_of_torchmetrics(bins, torchmetrics):
    rng = np.random.default_rng(bins)
    confidence = rng.random(400)
    confidence[:60] = rng.choice([0.0, 0.125, 0.5, 1.0], size=60)  # edges of 8 bins, and both ends of any
    correct = rng.random(400) < 1 - confidence  # too modest in the low bins, too sure in the high ones
    theirs = torchmetrics.binary_calibration_error(
        torch.from_numpy(confidence), torch.from_numpy(correct).long(), n_bins=bins
    )
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(theirs.item(), abs=1e-12)


def test_calibration_error_of_one_sample_is_its_own_gap():
    assert expected_calibration_error([0.75], [1]) == 0.25
    assert expected_calibration_error([1.0], [0]) == 1.0
    assert expected_calibration_error([0.0], [0]) == 0.0


# -- against loops


@any_case
def test_ranking_metrics_are_those_of_the_loops(case):
    correct, known, unknown = (list(part) for part in case)
    assert auroc(known, unknown) == reference.auroc(known, unknown)
    assert oscr(correct, known, unknown) == reference.oscr(correct, known, unknown)
    assert oscr(correct, known, unknown) == pytest.approx(reference.oscr_curve_area(correct, known, unknown))
    assert aupr_out(known, unknown) == pytest.approx(reference.average_precision(unknown, known))
    flipped = [-score for score in known], [-score for score in unknown]
    assert aupr_in(known, unknown) == pytest.approx(reference.average_precision(*flipped))
    for tpr in (0.25, 0.95, 1.0):
        assert fpr_at_tpr(known, unknown, tpr) == reference.fpr_at_tpr(known, unknown, tpr)


def test_tpr_of_exactly_the_asked_share_is_enough():
    for n in range(1, 200):
        for hits in {1, n // 2, n - 1, n} - {0}:
            known = np.arange(n)
            assert fpr_at_tpr(known, [hits - 0.5], tpr=hits / n) == 0.0
            assert fpr_at_tpr(known, [hits - 1.5], tpr=hits / n) == 1.0


# -- properties

# Few distinct values, so that ties are common; quarters stay exact under the transforms below.
score_lists = st.lists(st.integers(-6, 6).map(lambda k: k / 4), min_size=1, max_size=25)
wide_lists = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([-INF, INF]), min_size=1, max_size=25)
quick = settings(max_examples=60, deadline=None)


def _all(correct, known, unknown):
    return [
        auroc(known, unknown),
        oscr(correct, known, unknown),
        aupr_in(known, unknown),
        aupr_out(known, unknown),
        fpr_at_tpr(known, unknown),
    ]


@quick
@given(score_lists, score_lists, st.data())
def test_only_the_order_of_scores_counts(known, unknown, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    stretch = data.draw(st.sampled_from([math.exp, math.atan, lambda s: s**3 + s, lambda s: 1e9 * s - 7]))
    moved = [stretch(score) for score in known], [stretch(score) for score in unknown]
    assert _all(correct, *moved) == _all(correct, known, unknown)


@quick
@given(score_lists | wide_lists, score_lists | wide_lists, st.data())
def test_the_order_of_samples_does_not_count(known, unknown, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    order = data.draw(st.permutations(range(len(known))))
    shuffled = [correct[i] for i in order], [known[i] for i in order], data.draw(st.permutations(unknown))
    assert _all(*shuffled) == _all(correct, known, unknown)


@quick
@given(score_lists | wide_lists, score_lists | wide_lists)
def test_auroc_of_swapped_sides_is_its_complement(known, unknown):
    assert auroc(known, unknown) == pytest.approx(1 - auroc(unknown, known), abs=1e-15)


@quick
@given(score_lists | wide_lists, score_lists | wide_lists, st.data())
def test_oscr_is_at_most_accuracy_and_auroc_and_meets_auroc_when_all_are_right(known, unknown, data):
    correct = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    value = oscr(correct, known, unknown)
    assert 0 <= value <= min(np.mean(correct), auroc(known, unknown))
    assert value == reference.oscr(correct, known, unknown)
    assert oscr([True] * len(known), known, unknown) == auroc(known, unknown)


@quick
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=30))
def test_macro_f1_on_any_labels(pairs):
    labels, predictions = zip(*pairs, strict=True)
    expected = f1_score(labels, predictions, average="macro", zero_division=0)
    assert macro_f1(labels, predictions) == pytest.approx(expected, abs=1e-12)


# -- meaning of a score


def test_larger_score_means_more_unknown():
    known, unknown = np.linspace(0, 1, 50), np.linspace(2, 3, 50)
    correct = np.ones(50, dtype=bool)
    assert _all(correct, known, unknown) == [1.0, 1.0, 1.0, 1.0, 0.0]
    wrong_sign = _all(correct, -known, -unknown)
    assert wrong_sign[0] == wrong_sign[1] == 0.0
    assert max(wrong_sign[2:4]) < 0.4
    assert wrong_sign[4] == 1.0


def test_nan_counts_as_most_unknown():
    correct, known, unknown = [True, True, False], [0.1, math.nan, 0.4], [0.3, math.nan, INF]
    as_inf = correct, [0.1, INF, 0.4], [0.3, INF, INF]
    assert _all(correct, known, unknown) == _all(*as_inf)
    assert auroc([0.0], [math.nan]) == 1.0
    assert auroc([math.nan], [0.0]) == 0.0


def test_tensors_lists_and_arrays_agree():
    correct, known, unknown = _tied(5, 30, 20)
    expected = _all(correct, known, unknown)
    assert _all(correct.tolist(), known.tolist(), unknown.tolist()) == expected
    graph = torch.from_numpy(known).float().requires_grad_() * 1
    coarse = torch.from_numpy(unknown).to(torch.bfloat16)  # numpy has no such type; quarters stay exact
    assert _all(torch.from_numpy(correct), graph, coarse) == expected
    labels = torch.tensor([0, 1, 255], dtype=torch.uint8)
    assert accuracy(labels, [0, 1, -1]) == 2 / 3  # 255 is no unsigned -1


def test_arrays_need_no_torch():
    code = "import sys, pmal.reporting.metrics as m; m.auroc([1], [2]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- bootstrap


@pytest.mark.parametrize("case", [CASES["few levels"], CASES["one sided"], INFINITE["inf on both sides"]])
def test_interval_is_that_of_one_resample_at_a_time(case):
    correct, known, unknown = case
    known_rng, unknown_rng = np.random.default_rng(3).spawn(2)
    rows = []
    for _ in range(40):
        k = known_rng.integers(len(known), size=len(known))
        u = unknown_rng.integers(len(unknown), size=len(unknown))
        rows.append(_all(correct[k], known[k], unknown[u]))
    found = open_set_metrics(correct, known, unknown, resamples=40, seed=3)
    names = ["auroc", "oscr", "aupr_in", "aupr_out", "fpr95"]
    assert [found[name].value for name in names] == _all(correct, known, unknown)
    low, high = np.quantile(rows, [0.025, 0.975], axis=0)
    assert [found[name].low for name in names] == pytest.approx(low.tolist(), abs=1e-12)
    assert [found[name].high for name in names] == pytest.approx(high.tolist(), abs=1e-12)


def test_intervals_do_not_depend_on_the_block_but_on_the_seed(monkeypatch):
    case = _normal(4, 60, 40)
    whole = open_set_metrics(*case, resamples=50)
    assert open_set_metrics(*case, resamples=50, seed=1)["auroc"].low != whole["auroc"].low
    for cells in (1, 700):
        monkeypatch.setattr(metrics, "_BLOCK", cells)
        assert open_set_metrics(*case, resamples=50) == whole


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say():
    true_auroc = 0.5 * (1 + math.erf(0.5))  # unit normals one apart: Phi(1 / sqrt 2)
    truths = {"auroc": true_auroc, "oscr": 0.8 * true_auroc}  # right with chance 0.8, whatever the score
    covered = dict.fromkeys(truths, 0)
    for seed in range(200):
        found = open_set_metrics(*_normal(seed, 100, 100), resamples=200, seed=seed)
        for name, truth in truths.items():
            covered[name] += found[name].low <= truth <= found[name].high
    # 190 expected; three deviations of the count, and the percentile method is known to fall a little short.
    assert all(175 <= hits <= 199 for hits in covered.values()), covered


def test_width_of_the_auroc_interval_is_delongs():
    correct, known, unknown = _normal(8, 300, 500)
    placement_known = (known[:, None] < unknown).mean(axis=1)
    placement_unknown = (known[:, None] < unknown).mean(axis=0)
    deviation = math.sqrt(placement_known.var(ddof=1) / 300 + placement_unknown.var(ddof=1) / 500)
    found = open_set_metrics(correct, known, unknown, resamples=2000)["auroc"]
    assert (found.high - found.low) / (2 * 1.96 * deviation) == pytest.approx(1, abs=0.08)


def test_accuracy_interval_is_the_binomial_one():
    correct = np.arange(1000) < 900
    found = accuracy_interval(correct, resamples=4000)
    deviation = math.sqrt(0.9 * 0.1 / 1000)
    assert found.value == 0.9
    assert [found.low, found.high] == pytest.approx(
        [0.9 - 1.96 * deviation, 0.9 + 1.96 * deviation], abs=2e-3
    )
    assert accuracy_interval(correct, seed=5) == accuracy_interval(correct, seed=5)
    assert accuracy_interval([True, True]) == metrics.Estimate(1.0, 1.0, 1.0)


def test_bootstrap_of_a_benchmark_goes_in_few_blocks_and_each_is_small(monkeypatch):
    case, rows, count = _normal(6, 2_000, 10_000), [], metrics._count

    def spy(ranking, known_RN, unknown_RM):
        rows.append(len(known_RN))
        return count(ranking, known_RN, unknown_RM)

    monkeypatch.setattr(metrics, "_count", spy)
    tracemalloc.start()
    open_set_metrics(*case, resamples=300)  # 29 MB an array if it were one block
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == [1] + [10] * 30  # the samples themselves, and resamples together
    assert peak < 64e6


# -- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([], [1.0]), "known_scores is empty"),
        (lambda: auroc([1.0], []), "unknown_scores is empty"),
        (lambda: aupr_in([1.0], []), "unknown_scores is empty"),
        (lambda: aupr_out([], [1.0]), "known_scores is empty"),
        (lambda: fpr_at_tpr([], [1.0]), "known_scores is empty"),
        (lambda: oscr([], [], [1.0]), "known_scores is empty"),
        (lambda: open_set_metrics([True], [1.0], []), "unknown_scores is empty"),
        (lambda: accuracy([], []), "labels is empty"),
        (lambda: accuracy_interval([]), "correct is empty"),
        (lambda: oscr([True], [1.0, 2.0], [1.0]), "correct has 1 values and known_scores 2"),
        (lambda: accuracy([1, 2], [1]), "labels has 2 values and predictions 1"),
        (lambda: macro_f1([[1], [2]], [1, 2]), r"labels has shape \(2, 1\)"),
        (lambda: macro_f1([1, 2], [1, 2.5]), "predictions has values that are not whole"),
        (lambda: accuracy([1, 2], [1, INF]), "predictions has values that are not whole"),
        (lambda: auroc(0.5, [1.0]), r"known_scores has shape \(\)"),
        (lambda: auroc(["a"], [1.0]), "known_scores has type <U1"),
        (lambda: auroc([1j], [1.0]), "known_scores has type complex128"),
        (lambda: auroc([[1.0], [1.0, 2.0]], [1.0]), "known_scores cannot be read as one array"),
        (lambda: oscr([2], [1.0], [1.0]), "correct has values other than 0 and 1"),
        (lambda: expected_calibration_error([0.5, 1.5], [1, 1]), r"confidence\[1\] is 1.5"),
        (lambda: expected_calibration_error([math.nan], [1]), r"confidence\[0\] is nan"),
        (lambda: expected_calibration_error([0.5], [1, 0]), "correct has 2 values and confidence 1"),
    ],
)
def test_data_that_cannot_be_measured_is_named(call, message):
    with pytest.raises(DataError, match=message) as caught:
        call()
    assert "pass" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda tpr=tpr: fpr_at_tpr([0.0], [1.0], tpr), "tpr is") for tpr in (0, -0.1, 1.01, math.nan)),
        (lambda: expected_calibration_error([0.5], [1], bins=0), "bins is 0"),
        (lambda: open_set_metrics([1], [0.0], [1.0], resamples=0), "resamples is 0"),
        (lambda: accuracy_interval([1], seed=-1), "seed is -1"),
    ],
)
def test_options_out_of_range_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()
