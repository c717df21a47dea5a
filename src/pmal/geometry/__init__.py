"""Pure functions on embeddings: the paper's distance, and what all distances reveal about a sample."""

from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import TopologyDistance, topology_distance, topology_robustness
from pmal.geometry.torch_kernel import distance_block

__all__ = [
    "TopologyDistance",
    "centered_logits",
    "distance_block",
    "topology_distance",
    "topology_robustness",
]
