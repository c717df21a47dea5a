"""Open-set recognition by prototype mining and learning (PMAL).

Names are imported when they are first used, so that `import pmal` and the command line's help stay instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmal.data.samples import ArrayStore, Samples, Source
    from pmal.data.sources.readers import register_source
    from pmal.encoders import FeatureAdapter, register_encoder
    from pmal.ensemble.heads import Head, HeadShape, LinearHead, register_method
    from pmal.estimator.checks import check_open_set_estimator
    from pmal.estimator.confusion import OpenSetConfusionDisplay
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.geometry.robustness import topology_robustness
    from pmal.mining.candidates import select_candidates
    from pmal.mining.diversity import filter_diverse
    from pmal.mining.miner import mine_prototypes
    from pmal.mining.prototypes import PrototypeSet
    from pmal.optimization.distances import point_to_set_distance
    from pmal.optimization.losses import prototype_margin_loss
    from pmal.rejection.registered_scores import register_score
    from pmal.reporting.metrics import auroc, fpr_at_tpr, macro_f1, oscr

__version__ = "0.2.0.dev0"

__all__ = [
    "ArrayStore",
    "FeatureAdapter",
    "Head",
    "HeadShape",
    "LinearHead",
    "OpenSetClassifier",
    "OpenSetConfusionDisplay",
    "PrototypeSet",
    "Samples",
    "Source",
    "auroc",
    "check_open_set_estimator",
    "filter_diverse",
    "fpr_at_tpr",
    "macro_f1",
    "mine_prototypes",
    "oscr",
    "point_to_set_distance",
    "prototype_margin_loss",
    "register_encoder",
    "register_method",
    "register_score",
    "register_source",
    "select_candidates",
    "topology_robustness",
]

_HOMES = {
    "pmal.data.samples": ("ArrayStore", "Samples", "Source"),
    "pmal.data.sources.readers": ("register_source",),
    "pmal.encoders": ("FeatureAdapter", "register_encoder"),
    "pmal.ensemble.heads": ("Head", "HeadShape", "LinearHead", "register_method"),
    "pmal.estimator.open_set": ("OpenSetClassifier",),
    "pmal.estimator.checks": ("check_open_set_estimator",),
    "pmal.estimator.confusion": ("OpenSetConfusionDisplay",),
    "pmal.geometry.robustness": ("topology_robustness",),
    "pmal.mining.candidates": ("select_candidates",),
    "pmal.mining.diversity": ("filter_diverse",),
    "pmal.mining.miner": ("mine_prototypes",),
    "pmal.mining.prototypes": ("PrototypeSet",),
    "pmal.optimization.distances": ("point_to_set_distance",),
    "pmal.optimization.losses": ("prototype_margin_loss",),
    "pmal.rejection.registered_scores": ("register_score",),
    "pmal.reporting.metrics": ("auroc", "fpr_at_tpr", "macro_f1", "oscr"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'pmal' has no attribute '{name}'")
