"""Candidates of high quality, and a diverse few of them as each class's prototypes."""

from pmal.mining.candidates import select_candidates
from pmal.mining.diversity import diversity_gaps, filter_diverse
from pmal.mining.file_miner import MinedFile, mine_file
from pmal.mining.miner import check_rules, mine, mine_prototypes
from pmal.mining.prototypes import PrototypeSet

__all__ = [
    "MinedFile",
    "PrototypeSet",
    "check_rules",
    "diversity_gaps",
    "filter_diverse",
    "mine",
    "mine_file",
    "mine_prototypes",
    "select_candidates",
]
