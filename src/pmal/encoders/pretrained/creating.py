"""Backbones by name, with their weights; and from a description, without."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmal.encoders.pretrained import efficientnet_lite as lite
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.names import OWN, list_pretrained
from pmal.encoders.pretrained.weights import load_weights, read_own, read_safetensors
from pmal.errors import unknown_name


def create_backbone(name: str, *, weights: str | None = None) -> Backbone:
    """Return a frozen network with pretrained weights.

    Args:
        name: one of `list_pretrained()`, `hf/...`, `timm/...` or `torchvision/...`.
        weights: a .safetensors file to read instead of the usual weights. Its tensors have the names of the
            network itself, or those of the `Backbone` around it.

    Raises:
        UsageError: the name is unknown, or a package is missing.
        DataError: a file of weights cannot be used.
    """
    if name not in OWN:
        raise unknown_name("pretrained network", name, list_pretrained())
    given = None if weights is None else read_safetensors(Path(weights))
    backbone = _own(name)
    tensors = read_own(name) if given is None else given
    load_weights(backbone.body, lite.from_published(tensors), weights or OWN[name].path)
    return backbone


def rebuild_backbone(description: Mapping[str, Any]) -> Backbone:
    """Return the network of a description with weights that mean nothing yet: load the saved tensors next."""
    return _own(description["name"])


def _own(name: str) -> Backbone:
    settings = lite.VARIANTS[name]
    return Backbone(
        name,
        lite.EfficientNetLite(settings.depth),
        image_size=settings.image_size,
        num_features=lite.EfficientNetLite.num_features,
        mean=lite.MEAN,
        std=lite.STD,
        architecture={"kind": "efficientnet_lite", "depth": settings.depth},
    )
