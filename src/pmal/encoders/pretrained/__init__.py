"""Frozen networks from pixels to features, used in front of an encoder of features.

Names are imported on first use: whether weights are installed can be checked without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pmal.encoders.pretrained.names import is_pretrained, list_pretrained, weights_missing

if TYPE_CHECKING:
    from pmal.encoders.pretrained.backbone import Backbone, backbone_digest
    from pmal.encoders.pretrained.creating import create_backbone, rebuild_backbone

__all__ = [
    "Backbone",
    "backbone_digest",
    "create_backbone",
    "is_pretrained",
    "list_pretrained",
    "rebuild_backbone",
    "weights_missing",
]

_HOMES = {"backbone": ("Backbone", "backbone_digest"), "creating": ("create_backbone", "rebuild_backbone")}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
