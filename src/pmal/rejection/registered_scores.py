"""Unknown scores that plugins add. A table shows all of them; a model keeps the one that it rejects by.

B samples, K classes, D channels.
"""

import math
from collections.abc import Callable

from torch import Tensor

from pmal.errors import UsageError
from pmal.methods import METHODS, SCORE_NAMES, SCORES, Score


def register_score(name: str) -> Callable[[Score], Score]:
    """Return a decorator that makes a function the unknown score `name`.

    The function gets embeddings (B, D) and logits (B, K), both float64 tensors, and returns one number for
    each sample, (B,): the larger, the more unknown. A score that has to be fitted to the training set is a
    method: a head with `fit_after` and `own_scores`.

    Args:
        name: what `--score`, tables and saved models call it.

    Returns:
        A decorator, which returns what it decorates.

    Raises:
        UsageError: The name is taken.
    """

    def register(score: Score) -> Score:
        if name in (*SCORE_NAMES, *(own for method in METHODS.loaded().values() for own in method.scores)):
            raise UsageError(f"score '{name}' exists already: choose another name")
        SCORES.register(name, score, getattr(score, "__module__", None))
        return score

    return register


def registered_score(name: str, z_BD: Tensor, logits_BK: Tensor) -> Tensor:
    """Return a registered score, float64 (B,); what broke the network or the score is unknown."""
    z_BD, logits_BK = z_BD.double(), logits_BK.double()
    score_B = SCORES[name](z_BD, logits_BK)
    if not isinstance(score_B, Tensor) or score_B.shape != z_BD.shape[:1]:
        found = tuple(score_B.shape) if isinstance(score_B, Tensor) else type(score_B).__name__
        raise UsageError(f"score '{name}' returned {found}: it must return one number for each sample, (B,)")
    whole_B = z_BD.isfinite().all(dim=1) & (logits_BK < math.inf).all(dim=1)
    # Not isfinite: a score may be so small or large. NaN, and minus infinity, must not pass as known.
    return score_B.double().masked_fill(~whole_B | ~(score_B > -math.inf), math.inf)
