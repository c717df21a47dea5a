"""The conformal test martingale, written out in loops over samples and over all ways to bet."""

import itertools

BETS, JUMP = (0.0, -0.5, -1.0), 0.01


def ranks(levels, samples, lowest, uniforms):
    """The rank of each answer among held-out images and answers before, ties drawn by the given numbers.

    Between n held-out scores are n + 1 gaps: an answer of level l lies in the l-th from above.
    """
    found, before = [], []
    for level, uniform in zip(levels, uniforms, strict=True):
        below = sum(1 for gap in range(lowest, samples + 2) if gap < level)
        below += sum(1 for other in before if other < level)
        same = 1 + sum(1 for other in before if other == level)
        total = (samples + 2 - lowest) + len(before)
        found.append((below + uniform * same) / total)
        before.append(level)
    return found


def capital(p_values):
    """The mean over all sequences of bets, each as probable as the jumps make it."""
    total = 0.0
    for path in itertools.product(BETS, repeat=len(p_values)):
        weight, previous = 1.0, None
        for bet, p in zip(path, p_values, strict=True):
            chance = 1 / len(BETS)
            if previous is not None:
                chance = JUMP / len(BETS) + (1 - JUMP) * (bet == previous)
            weight *= chance * (1 + bet * (p - 0.5))
            previous = bet
        total += weight
    return total
