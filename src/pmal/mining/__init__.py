"""Candidates of high quality, and a diverse few of them as each class's prototypes."""

from pmal.mining.candidates import select_candidates
from pmal.mining.diversity import diversity_gaps, filter_diverse
from pmal.mining.miner import mine, mine_prototypes
from pmal.mining.prototypes import PrototypeSet

__all__ = [
    "PrototypeSet",
    "diversity_gaps",
    "filter_diverse",
    "mine",
    "mine_prototypes",
    "select_candidates",
]
