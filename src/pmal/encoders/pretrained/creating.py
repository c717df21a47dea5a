"""Creating backbones by name, with their weights, or from a description, without."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmal.encoders.pretrained import efficientnet_lite as lite
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.names import LIBRARIES, OWN, is_pretrained, list_pretrained
from pmal.encoders.pretrained.preprocessing import Preprocessing, checked_preprocessing
from pmal.encoders.pretrained.weights import load_weights, read_backbone, read_own
from pmal.errors import DataError, unknown_name

LITE, HUGGING_FACE = "efficientnet_lite", "transformers"
KINDS = (LITE, HUGGING_FACE, "timm", "torchvision")
FIELDS = ("name", "image_size", "num_features", "mean", "std", "resize", "architecture")


def create_backbone(name: str, *, weights: str | None = None) -> Backbone:
    """Return a frozen network with pretrained weights.

    Args:
        name: one of `list_pretrained()`, `hf/...`, `timm/...` or `torchvision/...`.
        weights: a .safetensors file to read instead of the usual weights. Its tensors are named as in the
            network itself, or as in the `Backbone` around it.

    Raises:
        UsageError: the name is unknown, a package is missing, or weights cannot be fetched.
        DataError: a file of weights, or a folder, cannot be used.
    """
    if not is_pretrained(name):
        patterns = [f"{library}/<model>" for library in LIBRARIES]
        raise unknown_name("pretrained network", name, [*list_pretrained(), *patterns])
    library = name.partition("/")[0]
    if name in OWN:
        return _own_with_weights(name, weights)
    if library == "hf":
        from pmal.encoders.pretrained.hugging_face import hugging_face_backbone

        return hugging_face_backbone(name, weights)
    from pmal.encoders.pretrained.libraries import library_backbone

    return library_backbone(name, weights)


def rebuild_backbone(description: Mapping[str, Any]) -> Backbone:
    """Return the network of a description with meaningless weights: load the saved tensors next.

    Nothing is fetched and no foreign code is run. The description may come from anyone.

    Raises:
        DataError: it describes no network that can be built here.
        UsageError: the library that has the code is not installed.
    """
    name, architecture, images = _read_description(description)
    where = f"pretrained network '{name}'"
    if architecture["kind"] == LITE:
        backbone = _own(name, images.resize)
    elif architecture["kind"] == HUGGING_FACE:
        from pmal.encoders.pretrained.hugging_face import rebuild_hugging_face

        backbone = rebuild_hugging_face(name, architecture, images, where)
    else:
        from pmal.encoders.pretrained.libraries import rebuild_library

        backbone = rebuild_library(name, architecture, images, where)
    if backbone.description() != dict(description):
        raise DataError(f"{where}: its description does not fit the network that it names")
    return backbone


def _read_description(description: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], Preprocessing]:
    """Return name, architecture and preprocessing, each of the right type and within bounds."""
    if not isinstance(description, Mapping) or {*description} != {*FIELDS}:
        raise DataError(f"description of a pretrained network: expected the fields {', '.join(FIELDS)}")
    name, architecture = description["name"], description["architecture"]
    if not isinstance(name, str) or not is_pretrained(name) or len(name) > 1000:
        raise DataError(f"description of a pretrained network: {str(name)[:60]!r} is no name of one")
    kind = architecture.get("kind") if isinstance(architecture, Mapping) else None
    if kind not in KINDS:
        raise DataError(
            f"pretrained network '{name}': kind {str(kind)[:40]!r} is not built: valid are {', '.join(KINDS)}"
        )
    assert isinstance(architecture, Mapping)
    if (name in OWN) != (kind == LITE) or (
        kind not in (LITE, HUGGING_FACE) and not name.startswith(f"{kind}/")
    ):
        raise DataError(f"pretrained network '{name}': is not of kind {kind}")
    size = description["image_size"]
    crop = architecture.get("crop", size)
    images = Preprocessing(size, crop, description["mean"], description["std"], description["resize"])
    return name, architecture, checked_preprocessing(images, f"pretrained network '{name}'")


def _own_with_weights(name: str, weights: str | None) -> Backbone:
    given = None if weights is None else read_backbone(Path(weights))
    backbone = _own(name, lite.RESIZE)
    tensors = read_own(name) if given is None else given
    load_weights(backbone.body, lite.from_published(tensors), weights or OWN[name].path)
    return backbone


def _own(name: str, resize: str) -> Backbone:
    depth, side = lite.VARIANTS[name]
    return Backbone(
        name,
        lite.EfficientNetLite(depth),
        Preprocessing(side, side, lite.MEAN, lite.STD, resize),
        num_features=lite.EfficientNetLite.num_features,
        architecture={"kind": LITE, "depth": depth},
    )
