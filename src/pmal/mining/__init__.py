"""Candidates of high quality, and a diverse few of them as each class's prototypes."""

from pmal.mining._arrays import check_spaces
from pmal.mining.candidates import select_candidates
from pmal.mining.diversity import diversity_gaps, filter_diverse
from pmal.mining.files.file_miner import MinedFile, mine_file
from pmal.mining.miner import check_settings, mine, mine_prototypes, mine_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions, count_pairs
from pmal.mining.sample_quality import SampleQuality

__all__ = [
    "MinedFile",
    "PrototypeSet",
    "QualityOptions",
    "SampleQuality",
    "check_settings",
    "check_spaces",
    "count_pairs",
    "diversity_gaps",
    "filter_diverse",
    "mine",
    "mine_file",
    "mine_prototypes",
    "mine_spaces",
    "select_candidates",
]
