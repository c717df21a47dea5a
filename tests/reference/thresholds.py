"""Thresholds as loops over samples and over every threshold that there is, in exact fractions.

A sample is accepted where its score is finite and at most the threshold. Larger score = more unknown.
"""

import math
from collections.abc import Sequence
from fractions import Fraction


def decide(predictions: Sequence[int], scores: Sequence[float], threshold: float) -> list[int]:
    """The prediction where it is accepted, -1 elsewhere."""
    answers = []
    for prediction, score in zip(predictions, scores, strict=True):
        accepted = not math.isnan(score) and score != math.inf and score <= threshold
        answers.append(prediction if accepted else -1)
    return answers


def macro_f1(labels: Sequence[int], answers: Sequence[int]) -> Fraction:
    """The harmonic mean of precision and recall, averaged over the classes in either list."""
    classes = set(labels) | set(answers)
    total = Fraction(0)
    for k in classes:
        pairs = list(zip(labels, answers, strict=True))
        true_positive = sum(y == k and a == k for y, a in pairs)
        false_positive = sum(y != k and a == k for y, a in pairs)
        false_negative = sum(y == k and a != k for y, a in pairs)
        total += Fraction(2 * true_positive, 2 * true_positive + false_positive + false_negative)
    return total / len(classes)


def best_f1(
    labels: Sequence[int], predictions: Sequence[int], scores: Sequence[float]
) -> tuple[float, Fraction]:
    """The largest of the best thresholds and its macro-F1; -inf stands for rejecting every sample."""
    tried = sorted({score for score in scores if not math.isnan(score) and score != math.inf})
    best_threshold, best = -math.inf, macro_f1(labels, decide(predictions, scores, -math.inf))
    for threshold in tried:
        found = macro_f1(labels, decide(predictions, scores, threshold))
        if found >= best:
            best_threshold, best = threshold, found
    return best_threshold, best


def conformal(known_scores: Sequence[float], accept: Fraction) -> float:
    """Try every score from the smallest; the first that has enough of n + 1 at or below it decides."""
    for threshold in sorted(known_scores):
        if Fraction(sum(score <= threshold for score in known_scores), len(known_scores) + 1) >= accept:
            return threshold
    return math.inf


def accepted_range(rank: int, samples: int, level: float) -> tuple[float, float]:
    """Where the share below the rank-th smallest of n uniform draws lies, by binomial sums and bisection.

    That share is at most q exactly where at least `rank` of the n draws are at most q.
    """
    tail = (1 - level) / 2
    return _quantile(rank, samples, tail), _quantile(rank, samples, 1 - tail)


def _quantile(rank: int, samples: int, probability: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = (
            math.comb(samples, k) * middle**k * (1 - middle) ** (samples - k)
            for k in range(rank, samples + 1)
        )
        low, high = (low, middle) if math.fsum(terms) >= probability else (middle, high)
    return (low + high) / 2
