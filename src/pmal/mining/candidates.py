"""High-quality candidates: per class, the samples whose quality is close to that of the best one."""

import math

import torch
from torch import Tensor

from pmal.errors import DataError, UsageError
from pmal.mining._arrays import Values, check_log_quality, first, integers


def select_candidates(log_r: Values, labels: Values, *, epsilon: float = 0.7, at_least: int = 10) -> Tensor:
    """Return which samples have r >= epsilon * (largest r of their class): a bool mask of shape (N,).

    Everything is compared as log r, which does not underflow.

    Args:
        log_r: log of each sample's quality, (N,).
        labels: class of each sample, (N,).
        epsilon: share of the largest r, from 0 to 1.
        at_least: a class keeps at least this many of its best samples (all if it has fewer), so that it can
            give as many prototypes as its size allows. Of equal samples, the earlier one is better.

    Returns:
        True for each candidate, bool (N,).

    Raises:
        UsageError: an option is out of range.
        DataError: a label is negative.

    >>> log_r = torch.log(torch.tensor([1.0, 0.8, 0.6, 0.1, 0.08, 0.06]))
    >>> select_candidates(log_r, [0, 0, 0, 1, 1, 1], at_least=1).tolist()
    [True, True, False, True, True, False]
    >>> select_candidates(log_r, [0, 0, 0, 1, 1, 1], at_least=3).tolist()
    [True, True, True, True, True, True]
    """
    check_epsilon(epsilon)
    if at_least < 0:
        raise UsageError(f"at_least={at_least}: must not be negative")
    log_N = check_log_quality(log_r)
    labels_N = integers(labels, "labels", len(log_N))
    if (labels_N < 0).any():
        raise DataError(f"sample {first(labels_N < 0)}: its label is negative: classes count from 0")
    order = best_first(log_N, labels_N)
    place = place_in_class(labels_N[order])
    best = order[place == 0]
    log_max_K = log_N.new_zeros(int(labels_N.max()) + 1 if len(labels_N) else 0)
    log_max_K[labels_N[best]] = log_N[best]
    log_epsilon = math.log(epsilon) if epsilon > 0 else -math.inf
    keep = log_N >= log_epsilon + log_max_K[labels_N]
    keep[order[place < at_least]] = True
    return keep


def check_epsilon(epsilon: float) -> None:
    """Raise `UsageError` for an epsilon outside 0 to 1."""
    if not 0.0 <= epsilon <= 1.0:
        raise UsageError(f"epsilon={epsilon}: must be from 0 (every sample is a candidate) to 1 (the best)")


def best_first(log_quality: Tensor, labels: Tensor) -> Tensor:
    """Return the positions of all samples, class by class, best first; ties keep their order."""
    by_quality = log_quality.argsort(descending=True, stable=True)
    return by_quality[labels[by_quality].argsort(stable=True)]


def place_in_class(sorted_labels: Tensor) -> Tensor:
    """Return 0, 1, 2, ... within each run of equal labels.

    >>> place_in_class(torch.tensor([0, 0, 0, 4, 7, 7])).tolist()
    [0, 1, 2, 0, 0, 1]
    """
    return torch.arange(len(sorted_labels)) - torch.searchsorted(sorted_labels, sorted_labels)
