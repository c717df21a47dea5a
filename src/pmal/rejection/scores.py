"""Unknown scores from logits. Larger means more unknown, for every score."""

from collections.abc import Callable

import torch


def probability_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """One minus the largest softmax probability (the paper's PR).

    Computed as the sum of the other classes' probabilities, which keeps its digits where the largest
    probability rounds to one.

    >>> probability_score(torch.tensor([[9.0, 0.0], [0.0, 0.0]]))
    tensor([1.2339e-04, 5.0000e-01], dtype=torch.float64)
    """
    probabilities_BK = logits_BK.double().softmax(dim=1)
    others_BK = probabilities_BK.scatter(1, logits_BK.argmax(dim=1, keepdim=True), 0.0)
    return others_BK.sum(dim=1)


def logit_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """Minus the largest logit."""
    return -logits_BK.double().amax(dim=1)


def energy_score(logits_BK: torch.Tensor) -> torch.Tensor:
    """Free energy: minus the log of the sum of exponentials of the logits."""
    return -logits_BK.double().logsumexp(dim=1)


LOGIT_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "probability": probability_score,
    "logit": logit_score,
    "energy": energy_score,
}
"""The scores that need nothing but logits, by the names used everywhere."""
