"""Models of timm and torchvision with their pretrained weights, which these libraries fetch themselves."""

import importlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pmal.data.decoding.decode import BICUBIC, WHOLE
from pmal.encoders.adapters import build_model, pooled
from pmal.encoders.pretrained.backbone import Backbone, Cropped
from pmal.encoders.pretrained.names import package_missing
from pmal.encoders.pretrained.preprocessing import Preprocessing, checked_preprocessing
from pmal.encoders.pretrained.weights import load_weights, read_backbone, without_prefix
from pmal.errors import DataError, UsageError, first_line

HEADS = ("fc.", "classifier.", "head.", "heads.")
"""Prefixes of the tensors of a classifier, which is left out."""
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
"""Names without ':' and '/', by which timm would fetch from a hub, whoever wrote the name."""


def library_backbone(name: str, weights: str | None) -> Backbone:
    """Return the model that `timm/...` or `torchvision/...` names, with its weights or those of a file."""
    kind, _, model = name.partition("/")
    if missing := package_missing(name):
        raise UsageError(missing)
    _check_name(model, UsageError)
    given = None if weights is None else read_backbone(Path(weights))
    network = build_model(kind, model, pretrained=given is None)
    images = checked_preprocessing(_images(kind, model, network), name)
    if given is not None:
        load_weights(network, _without_head(without_prefix(given, "network."), network), str(weights))
    return _wrap(name, network, images)


def rebuild_library(
    name: str, architecture: Mapping[str, Any], images: Preprocessing, where: str
) -> Backbone:
    """Return the same network without its weights; the library must be installed for its code."""
    model = architecture.get("model")
    if not isinstance(model, str) or name != f"{architecture['kind']}/{model}":
        raise DataError(f"{where}: its model is not the one of its name")
    _check_name(model, DataError)
    if missing := package_missing(name):
        raise UsageError(missing)
    return _wrap(name, build_model(architecture["kind"], model), images)


def _wrap(name: str, network: nn.Module, images: Preprocessing) -> Backbone:
    kind, _, model = name.partition("/")
    return Backbone(
        name,
        Cropped(network, images.crop, pooled),
        images,
        num_features=_count_features(network.eval(), images.crop, name),
        architecture={"kind": kind, "model": model, "crop": images.crop},
    )


def _images(kind: str, model: str, network: nn.Module) -> Preprocessing:
    library = importlib.import_module(kind)
    if kind == "timm":
        found = importlib.import_module("timm.data").resolve_model_data_config(network)
        crop = int(found["input_size"][-1])
        side = math.floor(crop / found.get("crop_pct", 1.0))
        resize = found.get("interpolation", BICUBIC) + (WHOLE if found.get("crop_mode") == "squash" else "")
        return Preprocessing(side, crop, tuple(found["mean"]), tuple(found["std"]), resize)
    seen = library.models.get_model_weights(model).DEFAULT.transforms()
    side, crop = (int(size[0]) for size in (seen.resize_size, seen.crop_size))
    resize = seen.interpolation.value
    return Preprocessing(max(side, crop), crop, tuple(seen.mean), tuple(seen.std), resize)


@torch.no_grad()
def _count_features(network: nn.Module, crop: int, name: str) -> int:
    try:
        return pooled(network(torch.zeros(1, 3, crop, crop))).shape[1]
    except UsageError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"{name} fails on an image of {crop} px ({first_line(error)})") from None


def _without_head(tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    own = network.state_dict()
    return {name: tensor for name, tensor in tensors.items() if name in own or not name.startswith(HEADS)}


def _check_name(model: str, error: type[UsageError] | type[DataError]) -> None:
    if not _NAME.fullmatch(model):
        raise error(
            f"'{model[:60]}' is no name of a model that the library itself defines: pass one without ':'"
        )
