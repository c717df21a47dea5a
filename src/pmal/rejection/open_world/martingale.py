"""A conformal test martingale: does traffic still look like the images that were held out?

The p-values of answers all come from the same n held-out images, so they are not independent of one another:
with enough traffic, the accidents of one held-out set alone would look like a change. `Ranks` takes this out.
It ranks each new answer among the held-out images and all answers before it, and draws at random between
answers that no held-out image lies between. If held-out images and traffic can be exchanged, these ranks
are independent and uniform, exactly.

`Jumper` bets against that (Vovk et al., Retrain or not retrain, 2021): its capital is a mean of players of
whom one keeps his money and the others bet on small ranks, that is on unknown-looking images, and a
hundredth of the money changes hands each time. Under exchangeability the capital ever reaches c with a
probability of at most 1 / c (Ville), whatever the number of answers. All bets fall with the rank, so the
promise holds as well if ranks are larger than uniform, as they are with ties among known scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pmal.errors import DataError, UsageError

BETS = (0.0, -0.5, -1.0)
"""Bets of the players. A player gains bet * (p - 1/2) for a rank p."""
JUMP = 0.01
"""Share of all money that is dealt out again before each answer."""


@dataclass
class Ranks:
    """Ranks of answers among held-out images and all answers before."""

    samples: int
    """Held-out images that the p-values were computed from."""
    lowest: int = 1
    """The smallest count of held-out images, the answer with them, that an answer must reach to be taken."""
    seed: int = 0
    _seen: NDArray[np.int64] = field(init=False, repr=False)
    _total: int = field(init=False, repr=False)
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.samples < 1 or not 1 <= self.lowest <= self.samples + 1:
            raise UsageError(
                f"ranks among {self.samples} held-out images from {self.lowest} on: none is left"
            )
        self._seen = np.zeros(self.samples + 2 - self.lowest, np.int64)
        self._total = len(self._seen)
        self._random = np.random.default_rng(self.seed)

    def next(self, level: int) -> float:
        """Return the rank from 0 to 1 of the next answer.

        Args:
            level: its p-value times samples + 1, from `lowest` to samples + 1.
        """
        place = level - self.lowest
        below, here = int(self._seen[:place].sum()) + place, int(self._seen[place]) + 1
        rank = (below + float(self._random.random()) * here) / self._total
        self._seen[place] += 1
        self._total += 1
        return rank


@dataclass
class Jumper:
    """The capital of players who bet that ranks become small."""

    log_capital: float = 0.0
    """Natural logarithm of all their money, which was 1."""
    highest: float = 0.0
    """The largest that it has been."""
    _shares: list[float] = field(default_factory=lambda: [1 / len(BETS)] * len(BETS), repr=False)

    @property
    def evidence(self) -> float:
        """Return the largest capital so far, in powers of ten."""
        return self.highest / math.log(10)

    def bet(self, rank: float) -> float:
        """Take one rank, and return the logarithm of the capital.

        >>> jumper = Jumper()
        >>> round(jumper.bet(0.0), 3), round(jumper.bet(1.0), 3)
        (0.223, -0.11)
        """
        dealt = ((1 - JUMP) * share + JUMP / len(BETS) for share in self._shares)
        won = [share * (1 + bet * (rank - 0.5)) for share, bet in zip(dealt, BETS, strict=True)]
        total = sum(won)
        self._shares, self.log_capital = [share / total for share in won], self.log_capital + math.log(total)
        self.highest = max(self.highest, self.log_capital)
        return self.log_capital


def levels(p_values: Sequence[float] | NDArray[np.floating], samples: int) -> NDArray[np.int64]:
    """Return each p-value times samples + 1; what is no p-value of so many held-out images is refused.

    >>> levels([0.25, 1.0], 3).tolist()
    [1, 4]
    """
    try:
        given_N = np.atleast_1d(np.asarray(p_values, np.float64))
    except (TypeError, ValueError):
        raise DataError("p-values must be numbers from 0 to 1") from None
    exact_N = given_N * (samples + 1)
    # False for NaN, too.
    sound_N = (np.abs(exact_N - np.rint(exact_N)) < 0.01) & (exact_N > 0.5) & (given_N < 1 + 1e-9)
    if given_N.ndim != 1 or not sound_N.all():
        bad = given_N if given_N.ndim != 1 else given_N[~sound_N][0]
        raise DataError(f"{bad} is no p-value of {samples} held-out images: name the model that gave it")
    found_N: NDArray[np.int64] = np.rint(exact_N).astype(np.int64)
    return found_N
