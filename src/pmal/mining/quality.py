"""How good a sample is: topology robustness, and the rules it is compared with.

Every rule gives the log of a quality in (0, 1], larger = better, so that the threshold epsilon means the same
for all of them. A rule that measures a spread or a shortfall x turns it into exp(-x / median of x), as the
robustness does. If a rule needs a probability, it is that of the sample's own label.

N samples, K classes, D channels, U spaces, S passes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.seeds import stream
from pmal.config import MiningConfig
from pmal.errors import UsageError
from pmal.geometry.robustness import topology_robustness
from pmal.mining._arrays import Space

# Rows whose dropout masks come from one random stream: part of the result, so it never changes.
_ROWS = 4096


@dataclass(frozen=True)
class QualityOptions:
    """What some of the rules can be told."""

    settings: MiningConfig = field(default_factory=MiningConfig)
    seed: int = 0
    passes: int = 32
    """Stochastic passes of mc-dropout."""
    device: str | torch.device | None = None
    report: Callable[[int], None] | None = None
    ranks: Ranks = ALONE
    """This, the device and the report go to `topology_robustness`."""


Rule = Callable[[Sequence[Space], Tensor, QualityOptions], Tensor]


def robustness(spaces: Sequence[Space], labels: Tensor, options: QualityOptions) -> Tensor:
    """Return the paper's log r: how alike a sample's distances to all others are in independent spaces."""
    settings = options.settings
    return topology_robustness(
        [(space.z, space.weight) for space in spaces],
        topology=settings.topology,
        temperature=settings.temperature or "median",
        precision=settings.precision,
        landmarks=settings.landmarks or None,
        seed=stream(options.seed, "landmarks"),
        device=options.device,
        report=options.report,
        ranks=options.ranks,
    )


def probability(spaces: Sequence[Space], labels_N: Tensor, options: QualityOptions) -> Tensor:
    """Return the probability of the own class, mean over the spaces."""
    against_UN = torch.stack([log_odds_against(space, labels_N) for space in spaces])
    log_mean_N = logsigmoid(-against_UN).logsumexp(dim=0) - math.log(len(spaces))
    # Near 1 only the rest to 1 still has digits; most of a trained set is there.
    rest_N = against_UN.sigmoid().mean(dim=0)
    return torch.where(rest_N < 0.5, torch.log1p(-rest_N), log_mean_N)


def ensemble(spaces: Sequence[Space], labels_N: Tensor, options: QualityOptions) -> Tensor:
    """Rate samples as deep ensembles do.

    The less the own class's probability varies between the spaces, the better.
    """
    if len(spaces) < 2:
        raise UsageError("quality=ensemble: needs two spaces or more, got 1: add one or choose another rule")
    rest_UN = torch.stack([log_odds_against(space, labels_N).sigmoid() for space in spaces])
    return exponent(rest_UN.var(dim=0, correction=0))


def mc_dropout(spaces: Sequence[Space], labels_N: Tensor, options: QualityOptions) -> Tensor:
    """Rate samples by Monte Carlo dropout.

    The less the own class's probability varies under dropout, the better.
    """
    return exponent(dropout_variance(spaces[0], labels_N, options.passes, options.seed))


def logit(spaces: Sequence[Space], labels_N: Tensor, options: QualityOptions) -> Tensor:
    """Return the logit of the own class, mean over the spaces.

    x is how much more the best one of the class has.
    """
    own_N = torch.stack([_own_logits(space, labels_N) for space in spaces]).mean(dim=0)
    best_K = own_N.new_full((len(spaces[0].weight),), -math.inf)
    best_K.scatter_reduce_(0, labels_N, own_N, "amax")
    return exponent(best_K[labels_N] - own_N)


def equal(spaces: Sequence[Space], labels_N: Tensor, options: QualityOptions) -> Tensor:
    """Rate all samples alike: every one is a candidate, and ids decide."""
    return torch.zeros(len(labels_N), dtype=torch.float64)


QUALITY_RULES: dict[str, Rule] = {
    "topology": robustness,
    "probability": probability,
    "ensemble": ensemble,
    "mc-dropout": mc_dropout,
    "logit": logit,
    "none": equal,
}


def count_pairs(samples: int, spaces: int, settings: MiningConfig) -> int:
    """Return how many pairs `robustness` reports as done when it ends, in all pairs of spaces.

    >>> count_pairs(100, 3, MiningConfig()), count_pairs(100, 2, MiningConfig(landmarks=20))
    (30000, 2000)
    """
    return samples * min(settings.landmarks or samples, samples) * math.comb(spaces, 2)


def log_odds_against(space: Space, labels_N: Tensor) -> Tensor:
    """Return log((1 - p) / p) of the own class's probability p, float64 (N,) on the CPU.

    p itself is 1.0 to the last digit for many a training sample; its odds still tell them apart.
    """
    blocks = _blocks(space, labels_N)
    return torch.cat([_against(_logits(z_BD, space), labels_B) for z_BD, labels_B in blocks]).cpu()


def dropout_variance(space: Space, labels_N: Tensor, passes: int, seed: int) -> Tensor:
    """Return the variance of the own class's probability under dropout of the embedding, float64 (N,).

    Dropout (ratio 0.5, the rest doubled) acts on the embedding, before the head: so it needs no network, and
    any embedding will do. The samples' masks depend on the seed and on their position alone.
    """
    if passes < 2:
        raise UsageError(f"passes={passes}: a variance needs at least 2")
    variances = []
    for start, (z_BD, labels_B) in enumerate(_blocks(space, labels_N)):
        generator = torch.Generator().manual_seed(stream(seed, "mc-dropout", start))
        rest = []
        for _ in range(passes):
            keep_BD = torch.randint(2, z_BD.shape, generator=generator, dtype=torch.uint8).to(z_BD.device)
            rest.append(_against(_logits(2 * z_BD * keep_BD, space), labels_B).sigmoid())
        variances.append(torch.stack(rest).var(dim=0, correction=0))
    return torch.cat(variances).cpu()


_NOTHING = 1e-100
"""Least median of x, as a share of the largest x. A smaller one would overflow the others."""


def exponent(x_N: Tensor) -> Tensor:
    """Return -x / median x. A median of nothing (half of the samples are perfect) gives way to the mean.

    >>> exponent(torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0])).tolist()
    [-0.0, -0.5, -1.0, -2.0, -4.0]
    """
    scale = float(np.median(x_N.numpy()))
    if scale <= _NOTHING * float(x_N.amax()):
        scale = float(x_N.mean())
    return -x_N / scale if scale > 0 else -x_N


def _blocks(space: Space, labels_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    labels = labels_N.to(space.z.device)
    for start in range(0, len(labels), _ROWS):
        yield space.z[start : start + _ROWS].double(), labels[start : start + _ROWS]


def _logits(z_BD: Tensor, space: Space) -> Tensor:
    return z_BD @ space.weight.double().T + space.bias.double()


def _own_logits(space: Space, labels_N: Tensor) -> Tensor:
    blocks = _blocks(space, labels_N)
    return torch.cat([_logits(z, space).gather(1, labels[:, None])[:, 0] for z, labels in blocks]).cpu()


def _against(logits_BK: Tensor, labels_B: Tensor) -> Tensor:
    own_B1 = labels_B[:, None]
    others_B = logits_BK.scatter(1, own_B1, -math.inf).logsumexp(dim=1)
    return others_B - logits_BK.gather(1, own_B1)[:, 0]
