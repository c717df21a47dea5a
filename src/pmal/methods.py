"""The open-set methods by name: what each trains, and by which score it rejects.

A method is one call of `register_method` (`ensemble/heads.py`) on the head that it puts on the encoder. The
methods that PMAL is compared with stand in `baselines/`, others in plugins. The stages of a run are in
`pipeline.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pmal.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Method:
    """How a method differs from a plain classifier."""

    score: str = "logit"
    """The one that it rejects by: its paper's, but for pmal, whose paper rejects by the distance."""
    head: str = "linear"
    """What its classifiers have on top of the encoder."""
    final: str = ""
    """The head of the finished network, if it is another one."""
    second: bool = False
    """The network is trained a second time, from the first classifier on."""
    mines: bool = False
    """The second training keeps images near mined prototypes."""
    scores: tuple[str, ...] = ()
    """Scores of its own, next to those of the logits."""
    passes: float = 1.0
    """How many images go through the network for each image of a batch, under its own head."""
    paper: str = ""


SCORE_NAMES = (
    *("probability", "logit", "energy", "distance", "neighbors", "combined", "typicality", "decision"),
    *("mahalanobis", "vim", "react"),
)
"""What no score of a method or plugin may be called."""

Score = Callable[["Tensor", "Tensor"], "Tensor"]
"""z_BD and logits_BK in, score_B out, all float64; larger is more unknown."""
SCORES: Registry[Score] = Registry("score")
"""Scores of plugins (`rejection/registered_scores.py`)."""


def _register_baselines() -> None:
    from pmal import baselines  # noqa: F401 - here, because it imports torch, and the command line's help must not


METHODS: Registry[Method] = Registry("method", _register_baselines)
METHODS.register(
    "pmal",
    Method(
        score="combined",
        second=True,
        mines=True,
        scores=("distance", "neighbors", "combined"),
        paper="Lu et al., PMAL: Open Set Recognition via Robust Prototype Mining, AAAI 2022",
    ),
    __name__,
)
METHODS.register(
    "softmax",
    Method(paper="Vaze et al., A Good Closed-Set Classifier Is All You Need?, ICLR 2022"),
    __name__,
)
