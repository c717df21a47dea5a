"""How well a classifier names the known and rejects the unknown.

A score says how unknown a sample looks: larger = more unknown, everywhere. NaN counts as +inf, since a sample
that breaks the model must not pass as known.

Every ranking metric depends on the scores through their order alone, so it is written over counts per level:
L distinct scores in rising order, and for each how many known, correctly named known and unknown samples have
it. A leading dimension R holds resamples, so the bootstrap runs the very same formulas on many rows at once.

Shapes: N known samples, M unknown samples, L levels, R resamples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pmal.data.conversions import as_numbers, as_scores, same_length
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal.data.conversions import Values

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Numbers per array in a block of resamples: a megabyte each, so that a block stays in the processor's cache.
_BLOCK = 2**17


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % bootstrap interval (percentile method)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class _Ranking:
    """Samples as the level of their score: known (N,), correct (N,), unknown (M,)."""

    known: Ints
    correct: Bools
    unknown: Ints
    levels: int


@dataclass(frozen=True)
class _Counts:
    """Samples per level, each (R, L); every level is more unknown than the one before."""

    known: Floats
    correct: Floats
    unknown: Floats


def accuracy(labels: "Values", predictions: "Values") -> float:
    """Share of samples whose prediction is their label.

    >>> accuracy([0, 1, 2, 2], [0, 1, 2, 1])
    0.75
    """
    truth, answer = _label_pair(labels, predictions)
    return float(np.mean(truth == answer))


def macro_f1(labels: "Values", predictions: "Values") -> float:
    """Return F1 averaged over the classes that occur in either; -1 (unknown) is a class like any other.

    Args:
        labels: the true class of each sample, (N,); -1 is unknown.
        predictions: the answers, (N,).

    Returns:
        A number from 0 to 1.

    >>> macro_f1([0, 0, 1, -1], [0, 0, -1, -1])  # F1 of 0: 1, of 1: 0, of unknown: 2/3
    0.5555555555555555
    """
    truth, answer = _label_pair(labels, predictions)
    classes, index = np.unique(np.concatenate([truth, answer]), return_inverse=True)
    hits = np.bincount(index[: len(truth)][truth == answer], minlength=len(classes))
    # A class occurs in one of the two at least, so the denominator (2 TP + FP + FN) is never zero.
    return float(np.mean(2 * hits / np.bincount(index)))


def expected_calibration_error(confidence: "Values", correct: "Values", bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins, weighted by samples (L1).

    Bins are closed on the left; a confidence of exactly 1 has a bin of its own, as in torchmetrics.

    >>> round(expected_calibration_error([0.9, 0.9, 0.6], [True, True, False], bins=10), 6)
    0.266667
    """
    if bins < 1:
        raise UsageError(f"bins is {bins}: pass 1 or more")
    given = _numbers(confidence, "confidence").astype(np.float64)
    outside = np.flatnonzero(~((given >= 0) & (given <= 1)))
    if outside.size:
        first = int(outside[0])
        raise DataError(f"confidence[{first}] is {given[first]}: pass probabilities between 0 and 1")
    right = _flags(correct, "correct")
    same_length(correct=right, confidence=given)
    index = np.searchsorted(np.arange(bins + 1) / bins, given, side="right") - 1
    gaps = np.bincount(index, weights=right - given)
    return float(np.abs(gaps).sum() / len(given))


def auroc(known_scores: "Values", unknown_scores: "Values") -> float:
    """Return the chance that an unknown sample scores higher than a known one; ties count half.

    Args:
        known_scores: unknown scores of known samples, (N,); larger is more unknown.
        unknown_scores: those of unknown samples, (M,).

    Returns:
        A number from 0 to 1; 0.5 is chance.

    >>> auroc([0.1, 0.2], [0.2, 0.9])
    0.875
    """
    return float(_auroc(_observed(_rank(known_scores, unknown_scores)))[0])


def aupr_in(known_scores: "Values", unknown_scores: "Values") -> float:
    """Return the average precision of finding the known samples by their low scores.

    >>> aupr_in([0.1, 0.2], [0.2, 0.9])  # at 0.1: recall 1/2, precision 1; at 0.2: recall 1, precision 2/3
    0.8333333333333333
    """
    return float(_aupr_in(_observed(_rank(known_scores, unknown_scores)))[0])


def aupr_out(known_scores: "Values", unknown_scores: "Values") -> float:
    """Return the average precision of finding the unknown samples by their high scores.

    >>> aupr_out([0.1, 0.2], [0.2, 0.9])
    0.8333333333333333
    """
    return float(_aupr_out(_observed(_rank(known_scores, unknown_scores)))[0])


def fpr_at_tpr(known_scores: "Values", unknown_scores: "Values", tpr: float = 0.95) -> float:
    """Return the share of unknown samples accepted where at least `tpr` of the known ones are.

    The threshold is the smallest one that accepts as many known samples.
    A sample is accepted if its score is at most the threshold.

    Args:
        known_scores: unknown scores of known samples, (N,); larger is more unknown.
        unknown_scores: those of unknown samples, (M,).
        tpr: the share of known samples to accept, above 0 and at most 1.

    Returns:
        A number from 0 to 1; lower is better.

    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.8], [0.2, 0.5, 0.7, 0.9], tpr=0.75)
    0.25
    """
    if not 0 < tpr <= 1:
        raise UsageError(f"tpr is {tpr}: pass a share above 0, at most 1")
    return float(_fpr_at_tpr(_observed(_rank(known_scores, unknown_scores)), tpr)[0])


def oscr(correct: "Values", known_scores: "Values", unknown_scores: "Values") -> float:
    """Return the area under the share of known samples accepted and named correctly.

    It is taken against the share of unknown samples accepted. It equals the chance that a known sample is
    named correctly and scores below an unknown one, ties counted half: AUROC if every known sample is named
    correctly, and never more than the accuracy.

    Args:
        correct: whether each known sample is named correctly, bool (N,).
        known_scores: unknown scores of known samples, (N,); larger is more unknown.
        unknown_scores: those of unknown samples, (M,).

    Returns:
        A number from 0 to 1.

    >>> oscr([True, False], [0.1, 0.2], [0.2, 0.9])
    0.5
    """
    return float(_oscr(_observed(_rank(known_scores, unknown_scores, correct)))[0])


def open_set_metrics(
    correct: "Values",
    known_scores: "Values",
    unknown_scores: "Values",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return every ranking metric with its interval; known and unknown samples are resampled separately.

    >>> found = open_set_metrics([True, True], [0.1, 0.2], [0.2, 0.9], resamples=200)
    >>> list(found), found["auroc"]
    (['auroc', 'fpr95', 'oscr', 'aupr_in', 'aupr_out'], Estimate(value=0.875, low=0.5, high=1.0))
    """
    _check_bootstrap(resamples, seed)
    ranking = _rank(known_scores, unknown_scores, correct)
    observed = _observed(ranking)
    drawn: dict[str, list[Floats]] = {name: [] for name in _RANKING_METRICS}
    for counts in _resampled(ranking, resamples, seed):
        for name, metric in _RANKING_METRICS.items():
            drawn[name].append(metric(counts))
    return {
        name: _estimate(float(metric(observed)[0]), np.concatenate(drawn[name]))
        for name, metric in _RANKING_METRICS.items()
    }


def accuracy_interval(correct: "Values", *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """Return the accuracy with its interval, which has no width if all samples are right, or all wrong.

    >>> accuracy_interval([True] * 90 + [False] * 10)
    Estimate(value=0.9, low=0.84, high=0.96)
    """
    _check_bootstrap(resamples, seed)
    right = _flags(correct, "correct")
    share = float(np.mean(right))
    # The hits among n draws with replacement are binomial: no need to draw the samples themselves.
    hits = np.random.default_rng(seed).binomial(len(right), share, size=resamples)
    return _estimate(share, hits / len(right))


def _auroc(counts: _Counts) -> Floats:
    pairs_R = _pairs_in_order(counts.known, counts.unknown)
    return pairs_R / (_total(counts.known) * _total(counts.unknown))


def _oscr(counts: _Counts) -> Floats:
    pairs_R = _pairs_in_order(counts.correct, counts.unknown)
    return pairs_R / (_total(counts.known) * _total(counts.unknown))


def _aupr_in(counts: _Counts) -> Floats:
    return _average_precision(counts.known, counts.unknown)


def _aupr_out(counts: _Counts) -> Floats:
    return _average_precision(counts.unknown[:, ::-1], counts.known[:, ::-1])


def _fpr_at_tpr(counts: _Counts, tpr: float = 0.95) -> Floats:
    # Shares, not tpr * N: a quotient is rounded once, so 19 of 20 is exactly 0.95.
    reached_RL = np.cumsum(counts.known, axis=1) / _total(counts.known)[:, None] >= tpr
    threshold_R = reached_RL.argmax(axis=1)
    accepted_RL = np.arange(counts.unknown.shape[1]) <= threshold_R[:, None]
    return _row_dot(counts.unknown, accepted_RL) / _total(counts.unknown)


_RANKING_METRICS: dict[str, Callable[[_Counts], Floats]] = {
    "auroc": _auroc,
    "fpr95": _fpr_at_tpr,
    "oscr": _oscr,
    "aupr_in": _aupr_in,
    "aupr_out": _aupr_out,
}


def _pairs_in_order(low_RL: Floats, high_RL: Floats) -> Floats:
    """Count pairs in which the first is on a lower level than the second; half a pair if they tie."""
    return _row_dot(high_RL, np.cumsum(low_RL, axis=1) - 0.5 * low_RL)


def _average_precision(positive_RL: Floats, negative_RL: Floats) -> Floats:
    """Return the mean over the positives of the precision at their level.

    Positives are expected on the first levels.
    """
    found_RL = np.cumsum(positive_RL, axis=1)
    # A resample may leave the first levels empty; no positive stands there, so any divisor will do.
    taken_RL = np.maximum(found_RL + np.cumsum(negative_RL, axis=1), 1.0)
    return _row_dot(positive_RL, found_RL / taken_RL) / _total(positive_RL)


def _row_dot(counts_RL: Floats, weights_RL: Floats | Bools) -> Floats:
    # Not vecdot: BLAS starts threads for every long row, some 20 times slower when the cores are busy.
    sum_R: Floats = np.einsum("rl,rl->r", counts_RL, weights_RL)
    return sum_R


def _total(counts_RL: Floats) -> Floats:
    total_R: Floats = counts_RL.sum(axis=1)
    return total_R


def _rank(known_scores: "Values", unknown_scores: "Values", correct: "Values | None" = None) -> _Ranking:
    known = _scores(known_scores, "known_scores")
    unknown = _scores(unknown_scores, "unknown_scores")
    correct_N = np.ones(len(known), dtype=np.bool_) if correct is None else _flags(correct, "correct")
    same_length(correct=correct_N, known_scores=known)
    distinct, level = np.unique(np.concatenate([known, unknown]), return_inverse=True)
    return _Ranking(level[: len(known)], correct_N, level[len(known) :], len(distinct))


def _observed(ranking: _Ranking) -> _Counts:
    known_1N = np.arange(len(ranking.known))[None]
    unknown_1M = np.arange(len(ranking.unknown))[None]
    return _count(ranking, known_1N, unknown_1M)


def _resampled(ranking: _Ranking, resamples: int, seed: int) -> Iterator[_Counts]:
    """Yield blocks of bootstrap resamples; each side has its own stream, so block sizes do not matter."""
    known_rng, unknown_rng = np.random.default_rng(seed).spawn(2)
    N, M = len(ranking.known), len(ranking.unknown)
    step = max(1, _BLOCK // (N + M))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        yield _count(ranking, known_rng.integers(N, size=(rows, N)), unknown_rng.integers(M, size=(rows, M)))


def _count(ranking: _Ranking, known_RN: Ints, unknown_RM: Ints) -> _Counts:
    """Count per level the samples at these positions, one row per resample."""
    shape = (len(known_RN), ranking.levels)
    row_R1 = np.arange(shape[0])[:, None] * ranking.levels
    known_cell_RN = ranking.known[known_RN] + row_R1
    return _Counts(
        _histogram(known_cell_RN, shape),
        _histogram(known_cell_RN[ranking.correct[known_RN]], shape),
        _histogram(ranking.unknown[unknown_RM] + row_R1, shape),
    )


def _histogram(cells: Ints, shape: tuple[int, int]) -> Floats:
    counts = np.bincount(cells.ravel(), minlength=shape[0] * shape[1])
    return counts.reshape(shape).astype(np.float64)


def _estimate(value: float, drawn_R: Floats) -> Estimate:
    low, high = np.quantile(drawn_R, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def _check_bootstrap(resamples: int, seed: int) -> None:
    if resamples < 1:
        raise UsageError(f"resamples is {resamples}: pass 1 or more")
    if seed < 0:
        raise UsageError(f"seed is {seed}: pass 0 or more")


def _numbers(values: "Values", name: str) -> NDArray[Any]:
    """Return one number per sample, at least one sample."""
    numbers = as_numbers(values, name)
    if numbers.size == 0:
        raise DataError(f"{name} is empty: pass at least one sample")
    return numbers


def _scores(values: "Values", name: str) -> Floats:
    return as_scores(_numbers(values, name), name)


def _flags(values: "Values", name: str) -> Bools:
    numbers = _numbers(values, name)
    if not np.isin(numbers, (0, 1)).all():
        raise DataError(f"{name} has values other than 0 and 1: pass whether each prediction is right")
    return numbers.astype(np.bool_)


def _labels(values: "Values", name: str) -> Ints:
    numbers = _numbers(values, name)
    # The bound also keeps out NaN and inf, which no integer holds.
    if numbers.dtype.kind == "f" and not ((np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))).all():
        raise DataError(f"{name} has values that are not whole: pass class numbers, -1 for unknown")
    return numbers.astype(np.int64)


def _label_pair(labels: "Values", predictions: "Values") -> tuple[Ints, Ints]:
    truth, answer = _labels(labels, "labels"), _labels(predictions, "predictions")
    same_length(labels=truth, predictions=answer)
    return truth, answer
