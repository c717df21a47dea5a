"""Where known ends: thresholds on an unknown score, and the decision by them.

A sample is accepted if its score is at most the threshold. NaN counts as +inf, and +inf is never accepted,
whatever the threshold: a sample that breaks the model is unknown. Unknown is the label -1.

Split-conformal calibration: among n held-out known scores and a new one, every rank of the new one is equally
likely, so the r-th smallest of the n accepts it with a probability of at least r / (n + 1). This asks for
exchangeable samples and nothing else: no shape of the scores, no unknown samples. It holds on average over
calibration sets, and ties only add to it. The share that the threshold of one calibration set accepts follows
Beta(r, n + 1 - r) if scores have no ties: `accepted_range` gives its quantiles.

Shapes: N samples, K classes, T candidate thresholds.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pmal.data.conversions import as_numbers, as_scores, same_length
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal.data.conversions import Values

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TIE = 1e-12
"""Means of F1 that differ by less than this share are one value, rounded in two ways."""
_WIDE = 0.1
"""A range of more than ten points says little about what a threshold does."""
_FEW = "few held-out images: raise data.held_out, or add images"


@dataclass(frozen=True)
class Threshold:
    """A calibrated threshold, and how far it can be trusted."""

    value: float
    """+inf accepts every sample whose score is finite."""
    accept: float
    """The share of new known samples that it is to accept, on average over calibration sets."""
    samples: int
    """Known samples that it was calibrated on."""
    guaranteed: bool
    """Whether it does; if there is one threshold per class: on the samples predicted as this class."""
    pooled: bool = False
    """The threshold of all classes together, because this one has too few samples of its own."""

    @property
    def accepted_range(self) -> tuple[float, float] | None:
        """Return the 90 % range of the share of new known samples accepted; None if all finite scores are.

        >>> low, high = conformal_threshold(range(42), accept=0.95).accepted_range
        >>> round(low, 3), round(high, 3)
        (0.892, 0.991)
        """
        if self.value == math.inf:
            return None
        return accepted_range(_rank(self.samples, self.accept), self.samples)

    @property
    def note(self) -> str:
        """Return one line for a person: the promise, the range, and a warning if the range is wide."""
        if self.guaranteed:
            share = f"accepts at least {_percent(self.accept)} % of known images on average"
            return f"{share}; with {self.samples} held-out images, this threshold {_range_words(self)}"
        needed = samples_needed(self.accept)
        if self.pooled:
            lack = f"fewer than {needed} usable samples"
            return f"no guarantee for this class: {lack}, so the threshold of all {self.samples} is used"
        if self.samples < needed:
            return f"no guarantee: accept={self.accept} needs {needed} known samples, not {self.samples}"
        return f"no guarantee: too many of the {self.samples} known scores are NaN or infinite"


def conformal_p_values(known_scores: "Values", scores: "Values") -> Floats:
    """Return how likely a known sample is to look at least as unknown: (1 + #{known >= score}) / (n + 1).

    NaN counts as +inf. At most a share p of new known samples has a value of p or less.

    >>> conformal_p_values([1.0, 2.0, 3.0], [0.0, 2.0, 9.0]).tolist()
    [1.0, 0.75, 0.25]
    """
    known_N, scores_B = np.sort(as_scores(known_scores, "known_scores")), as_scores(scores, "scores")
    at_least_B = len(known_N) - np.searchsorted(known_N, scores_B, side="left")
    found_B: Floats = (1 + at_least_B) / (len(known_N) + 1)
    return found_B


def check_fdr(fdr: float, held_out: int | None = None) -> None:
    """Refuse what is no share of all that is called unknown, or a share that no sample can reach.

    Args:
        fdr: the share.
        held_out: number of known samples that p-values come from. None: not known here.
    """
    if not isinstance(fdr, Real) or not 0 < fdr < 1:
        raise UsageError(f"fdr is {fdr}: pass a share above 0 and below 1, such as 0.1")
    if held_out is not None and fdr * (held_out + 1) < 1:
        least = math.ceil(1000 / (held_out + 1)) / 1000
        raise UsageError(
            f"fdr is {fdr}: with {held_out} held-out samples no p-value is below 1/{held_out + 1}, "
            f"so nothing could be called unknown: pass {least:g} or more"
        )


def discoveries(p_values: "Values", fdr: float) -> NDArray[np.bool_]:
    """Return which samples of a batch are unknown, such that at most a share `fdr` of these is known.

    Benjamini and Hochberg's rule: the largest k such that the k-th smallest of B p-values is at most
    fdr k / B. It bounds the expected share also for conformal p-values, which share their known samples
    (Bates et al., Annals of Statistics 2023).

    >>> discoveries([0.01, 0.9, 0.04, 0.03], fdr=0.1).tolist()
    [True, False, True, True]
    """
    check_fdr(fdr)
    p_B = as_numbers(p_values, "p_values")
    rising_B = np.sort(p_B)
    passed_B = rising_B <= fdr * np.arange(1, len(p_B) + 1) / max(len(p_B), 1)
    limit = rising_B[np.flatnonzero(passed_B)[-1]] if passed_B.any() else -math.inf
    found_B: NDArray[np.bool_] = p_B <= limit
    return found_B


@dataclass(frozen=True)
class F1Threshold:
    """The best threshold on a validation set, and what it reached there."""

    value: float
    macro_f1: float


def promise(thresholds: Sequence[Threshold]) -> tuple[bool, str]:
    """Return whether the thresholds keep their promise, and one line about it: one for all, or one per class.

    Of several, the line gives the widest range.

    >>> promise(per_class_thresholds([1.0, 2.0, 3.0, 9.0], [0, 0, 0, 1], 2, accept=0.6))
    (False, 'no guarantee for 1 of 2 classes, which have the threshold of all together')
    """
    if len(thresholds) == 1:
        return thresholds[0].guaranteed, thresholds[0].note
    weak, count = sum(not threshold.guaranteed for threshold in thresholds), len(thresholds)
    if weak:
        return False, f"no guarantee for {weak} of {count} classes, which have the threshold of all together"
    widest = max(thresholds, key=_width)
    share = f"at least {_percent(widest.accept)} % of the known images taken for each class, on average"
    one = f"the least certain class, with {widest.samples} held-out images,"
    return True, f"accepts {share}; the threshold of {one} {_range_words(widest)}"


@functools.lru_cache
def accepted_range(rank: int, samples: int, level: float = 0.9) -> tuple[float, float]:
    """Return the limits between which the accepted share of new known samples lies with probability `level`.

    The share of a distribution below the rank-th smallest of n draws follows Beta(rank, n + 1 - rank),
    whatever the distribution. The share is as likely to lie below the range as above it. Ties only add to it.

    Args:
        rank: place of the threshold among the calibration scores, 1 for the smallest.
        samples: how many calibration scores there are.
        level: probability of the range.

    Returns:
        The lower and the upper limit.

    >>> low, high = accepted_range(1, 1, level=0.9)
    >>> round(low, 12), round(high, 12)
    (0.05, 0.95)
    """
    from scipy.special import betaincinv  # takes a while to import; a decision does without it

    if not 1 <= rank <= samples or not 0 < level < 1:
        raise UsageError(
            f"rank {rank} of {samples}, level {level}: pass a rank from 1 to samples and a level below 1"
        )
    tail = (1 - level) / 2
    low, high = (float(betaincinv(rank, samples + 1 - rank, share)) for share in (tail, 1 - tail))
    return low, high


def samples_needed(accept: float) -> int:
    """Return the fewest known samples for which the guarantee can be given.

    >>> samples_needed(0.95), samples_needed(0.99)
    (19, 99)
    """
    share = _exact_share(accept)
    return math.ceil(share / (1 - share))


def conformal_threshold(known_scores: "Values", accept: float = 0.95) -> Threshold:
    """Return the smallest threshold that accepts a new known sample with a probability of at least `accept`.

    If there are too few samples for that, nothing finite will do: the value is +inf, without guarantee.

    >>> conformal_threshold(range(1, 40), accept=0.95)
    Threshold(value=38.0, accept=0.95, samples=39, guaranteed=True, pooled=False)
    >>> conformal_threshold([0.1, 0.2], accept=0.95).note
    'no guarantee: accept=0.95 needs 19 known samples, not 2'
    """
    return _calibrate(_calibration_scores(known_scores, "known_scores"), accept)


def per_class_thresholds(
    known_scores: "Values", predictions: "Values", num_classes: int, accept: float = 0.95
) -> tuple[Threshold, ...]:
    """Return one threshold per class, by the predicted class of each known sample, right or wrong.

    By the prediction and not the label, since that is all a new sample has: the guarantee then holds among
    the samples predicted as a class. A class that cannot give it gets the threshold of all classes.

    >>> scores, predictions = [1.0, 2.0, 3.0, 9.0], [0, 0, 0, 1]
    >>> [(t.value, t.pooled) for t in per_class_thresholds(scores, predictions, 2, accept=0.6)]
    [(3.0, False), (3.0, True)]
    """
    scores_N = _calibration_scores(known_scores, "known_scores")
    class_N = _labels(predictions, "predictions", lowest=0)
    same_length(predictions=class_N, known_scores=scores_N)
    if num_classes <= class_N.max():
        raise UsageError(
            f"num_classes is {num_classes}, but predictions hold class {class_N.max()}: raise it"
        )
    pooled = replace(_calibrate(scores_N, accept), guaranteed=False, pooled=True)
    own = (_calibrate(scores_N[class_N == k], accept) for k in range(num_classes))
    return tuple(threshold if threshold.guaranteed else pooled for threshold in own)


def best_f1_threshold(labels: "Values", predictions: "Values", scores: "Values") -> F1Threshold:
    """Return the threshold of the highest macro-F1, unknown (-1) counted as a class; of equals the largest.

    Exact: all scores are tried, and a value below them. A class that occurs neither among the labels nor
    among the accepted predictions is left out of the mean, as in `macro_f1`.

    >>> best_f1_threshold([0, 0, 1, -1], [0, 0, 1, 1], [0.1, 0.2, 0.6, 0.7])
    F1Threshold(value=0.6, macro_f1=1.0)
    """
    truth_N, answer_N = _labels(labels, "labels"), _labels(predictions, "predictions")
    scores_N = _calibration_scores(scores, "scores")
    same_length(labels=truth_N, scores=scores_N)
    same_length(predictions=answer_N, scores=scores_N)
    if (truth_N == -1).all() or not (truth_N == -1).any():
        raise DataError(
            "labels need known and unknown (-1) samples: without unknowns use conformal_threshold"
        )
    # What the classifier itself calls unknown stays unknown at every threshold.
    rising_N = np.where(answer_N == -1, np.inf, scores_N)
    order = np.argsort(rising_N)
    tried = np.unique(scores_N[scores_N < np.inf])
    value_T = np.append(np.nextafter(tried[0], -np.inf), tried)
    accepted_T = np.searchsorted(rising_N[order], value_T, side="right")
    mean_T = _macro_f1(truth_N[order], answer_N[order], accepted_T)
    best = int(np.flatnonzero(mean_T >= mean_T.max() * (1 - _TIE))[-1])
    return F1Threshold(float(value_T[best]), float(mean_T[best]))


def decide(predictions: "Values", scores: "Values", thresholds: ArrayLike) -> Ints:
    """Return the predicted class of accepted samples, -1 for the others.

    Args:
        predictions: the nearest class of each sample.
        scores: of each sample.
        thresholds: one, or one per class.

    >>> decide([0, 1, 1], [0.2, 0.2, float("nan")], [0.1, 0.3]).tolist()
    [-1, 1, -1]
    """
    answer_N, scores_N = _labels(predictions, "predictions"), as_scores(scores, "scores")
    same_length(predictions=answer_N, scores=scores_N)
    accepted_N = (scores_N <= _limits(answer_N, thresholds)) & (scores_N < np.inf)
    return np.where(accepted_N, answer_N, -1)


def _limits(answer_N: Ints, thresholds: ArrayLike) -> Floats:
    """Return what each sample's score is compared with."""
    try:
        limits = np.asarray(thresholds, dtype=np.float64)
    except (TypeError, ValueError):
        limits = np.array(np.nan)
    if limits.ndim > 1 or np.isnan(limits).any():
        raise UsageError("thresholds have to be one number, or one for each class: pass their values")
    if limits.ndim == 0:
        return limits
    highest = answer_N.max(initial=0)
    if highest >= len(limits):
        raise UsageError(f"{len(limits)} thresholds for classes up to {highest}: pass one for each class")
    return limits[answer_N]  # -1 takes the last one, and stays -1 with any


def _calibrate(scores_N: Floats, accept: float) -> Threshold:
    samples = len(scores_N)
    rank = _rank(samples, accept)
    value = float(np.partition(scores_N, rank - 1)[rank - 1]) if rank <= samples else math.inf
    return Threshold(value, float(accept), samples, guaranteed=value < math.inf)


def _rank(samples: int, accept: float) -> int:
    """Return the place of the threshold among the sorted scores; above `samples` there is none."""
    return math.ceil((samples + 1) * _exact_share(accept))


def rejected_levels(samples: int, accept: float) -> int:
    """Return how many of the samples + 1 values that a p-value can take make an image unknown.

    >>> rejected_levels(99, 0.95), rejected_levels(5, 0.95)
    (5, 0)
    """
    return max(samples + 1 - _rank(samples, accept), 0)


def largest_rates(samples: int) -> Floats:
    """Return for each rank from 1 on the largest acceptance rate whose threshold has this rank, (samples,).

    >>> largest_rates(3).tolist()
    [0.25, 0.5, 0.75]
    """
    return np.array([_largest_rate(rank, samples) for rank in range(1, samples + 1)], dtype=np.float64)


def _largest_rate(rank: int, samples: int) -> float:
    """Return a float next to rank / (samples + 1), because a rate counts as it is written."""
    rate = math.nextafter(rank / (samples + 1), 1.0)
    while _rank(samples, rate) > rank:
        rate = math.nextafter(rate, 0.0)
    return rate


def _width(threshold: Threshold) -> float:
    low, high = threshold.accepted_range or (1.0, 1.0)
    return high - low


def _range_words(threshold: Threshold) -> str:
    low, high = threshold.accepted_range or (1.0, 1.0)
    text = f"accepts {100 * low:.1f} to {100 * high:.1f} % (90 % range)"
    return f"{text}; {_FEW}" if high - low > _WIDE else text


def _percent(share: float) -> str:
    """Return a share in percent as it is written: 99.9, not 99.90000000000001.

    >>> _percent(0.95), _percent(0.999)
    ('95', '99.9')
    """
    return f"{100 * share:.10g}"


def _exact_share(accept: float) -> Fraction:
    """Return the share as written: 0.07 of 100 is 7, but a bit more in floating point, rounded up to 8."""
    if not 0 < accept < 1:
        raise UsageError(f"accept is {accept}: pass a share above 0 and below 1, such as 0.95")
    return Fraction(str(float(accept)))


def _macro_f1(truth_N: Ints, answer_N: Ints, accepted_T: Ints) -> Floats:
    """Return macro-F1 for each T: the first `accepted` samples keep their answer, the others are unknown."""
    rejected_T = len(truth_N) - accepted_T
    unknown_hits_T = (truth_N == -1).sum() - _running_count(truth_N == -1)[accepted_T]
    total_T = 2 * unknown_hits_T / ((truth_N == -1).sum() + rejected_T)
    present_T = np.ones(len(accepted_T))
    known = np.union1d(truth_N, answer_N)
    for k in known[known >= 0]:
        hits_T = _running_count((truth_N == k) & (answer_N == k))[accepted_T]
        size_T = (truth_N == k).sum() + _running_count(answer_N == k)[accepted_T]
        total_T += 2 * hits_T / np.maximum(size_T, 1)
        present_T += size_T > 0
    mean_T: Floats = total_T / present_T
    return mean_T


def _running_count(flags_N: NDArray[np.bool_]) -> Ints:
    """Return how many flags are set among the first 0, 1, ..., N."""
    return np.append(0, np.cumsum(flags_N))


def _calibration_scores(values: "Values", name: str) -> Floats:
    scores = as_scores(values, name)
    if not (scores < np.inf).any():
        reason = "is empty" if scores.size == 0 else "has nothing but NaN or +inf"
        raise DataError(f"{name} {reason}: pass the scores of held-out samples")
    return scores


def _labels(values: "Values", name: str, lowest: int = -1) -> Ints:
    numbers = as_numbers(values, name)
    # The upper bound also keeps out inf, which no integer holds.
    whole = (numbers == np.floor(numbers)) & (numbers >= lowest) & (numbers < 2**53)
    if not whole.all():
        first = int(np.flatnonzero(~whole)[0])
        raise DataError(f"{name}[{first}] is {numbers[first]}: pass class numbers from {lowest} on")
    return numbers.astype(np.int64)
