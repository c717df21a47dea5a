"""The open-set methods by name: what each trains, and by which score it rejects.

What a method puts on the encoder, its head, is in `baselines/`; the stages of a run are in `pipeline.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """How a method differs from a plain classifier."""

    score: str = "logit"
    """The one that it rejects by: its paper's, but for pmal, whose paper rejects by the distance."""
    head: str = "linear"
    """What its classifiers have on top of the encoder."""
    final: str = ""
    """The head of the finished network, where it is another one."""
    second: bool = False
    """The network is trained a second time, from the first classifier on."""
    mines: bool = False
    """The second training keeps images near mined prototypes."""
    scores: tuple[str, ...] = ()
    """Scores of its own, beside those of the logits."""
    paper: str = ""


_RPL = "Chen et al., Learning Open Set Network with Discriminative Reciprocal Points, ECCV 2020"
_ARPL = "Chen et al., Adversarial Reciprocal Points Learning for Open Set Recognition, TPAMI 2021"

METHODS = {
    "pmal": Method(
        score="combined",
        second=True,
        mines=True,
        scores=("distance", "neighbors", "combined"),
        paper="Lu et al., PMAL: Open Set Recognition via Robust Prototype Mining, AAAI 2022",
    ),
    "softmax": Method(paper="Vaze et al., A Good Closed-Set Classifier Is All You Need?, ICLR 2022"),
    "cpn": Method(
        head="cpn", paper="Yang et al., Convolutional Prototype Network for Open Set Recognition, TPAMI 2020"
    ),
    "rpl": Method(score="probability", head="rpl", paper=_RPL),
    "rpl++": Method(head="rpl++", paper=_RPL),
    "arpl": Method(head="arpl", paper=_ARPL),
    "arpl+cs": Method(head="arpl+cs", paper=_ARPL),
    "openmax": Method(
        score="openmax",
        final="openmax",
        scores=("openmax",),
        paper="Bendale and Boult, Towards Open Set Deep Networks, CVPR 2016",
    ),
    "proser": Method(
        score="placeholder",
        final="proser",
        second=True,
        scores=("placeholder",),
        paper="Zhou et al., Learning Placeholders for Open-Set Recognition, CVPR 2021",
    ),
    "cgdl": Method(
        score="cgdl",
        head="cgdl",
        scores=("cgdl", "reconstruction", "latent"),
        paper="Sun et al., Conditional Gaussian Distribution Learning for Open Set Recognition, CVPR 2020",
    ),
    "openhybrid": Method(
        score="density",
        head="openhybrid",
        scores=("density",),
        paper="Zhang et al., Hybrid Models for Open Set Recognition, ECCV 2020",
    ),
}


def register_heads() -> None:
    """Import the heads of all methods: each registers itself by name in `pmal.ensemble.heads`."""
    from pmal import baselines  # noqa: F401 - here, because it imports torch, and the command line's help must not
