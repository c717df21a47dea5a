"""Vision models of transformers that can be built here, and their allowed configurations.

A configuration may come with a model from anyone. So only these families exist, each built by transformers'
own classes, and only the fields below are passed on: others could name code.

    dinov2              the first token after the last norm
    vit                 the first token after the last norm, without the pooling layer that few weights have
    clip_vision_model   the first token after its own norm; of a model of images and text, the image part
    convnext            the mean of the last maps, after a norm
    resnet              the mean of the last maps
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pmal.config import Allowed, one_of
from pmal.errors import DataError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu")


def whole(low: int, high: int) -> Allowed:
    """Return the whole numbers between two bounds, both included."""
    words = f"a whole number from {low} to {high}"
    return Allowed(lambda value: type(value) is int and low <= value <= high, words)


def wholes(each: Allowed) -> Allowed:
    """Return the lists with one whole number for each stage."""

    def allows(value: Any) -> bool:
        return type(value) is list and 1 <= len(value) <= 8 and all(map(each.allows, value))

    return Allowed(allows, f"one to eight times {each}")


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 1


SHARE = Allowed(_is_share, "a number from 0 to 1")
WIDTH, SIDE, FLAG, ACTIVATION = whole(1, 16384), whole(1, 4096), one_of(False, True), one_of(*ACTIVATIONS)

_ALL: Mapping[str, Allowed] = {"num_channels": whole(3, 3), "hidden_act": ACTIVATION}
_TOKENS: Mapping[str, Allowed] = {
    **_ALL,
    "hidden_size": WIDTH,
    "num_hidden_layers": whole(1, 256),
    "num_attention_heads": whole(1, 256),
    "image_size": SIDE,
    "patch_size": SIDE,
    "layer_norm_eps": SHARE,
}
_STAGES: Mapping[str, Allowed] = {**_ALL, "hidden_sizes": wholes(WIDTH), "depths": wholes(whole(1, 128))}


@dataclass(frozen=True)
class Family:
    """How a model of one kind is built and how its features are read."""

    config: str
    model: str
    """Names of the model's classes in transformers."""
    fields: Mapping[str, Allowed]
    """Fields of its configuration that decide what is computed."""
    first_token: bool = False
    """Whether the features are the first token; else they are the model's own pooled output."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration that have one value here."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model's class."""


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "dinov2": Family(
            "Dinov2Config",
            "Dinov2Model",
            {**_TOKENS, "mlp_ratio": whole(1, 64), "qkv_bias": FLAG, "use_swiglu_ffn": FLAG},
            first_token=True,
            fixed={"use_mask_token": False},
        ),
        "vit": Family(
            "ViTConfig",
            "ViTModel",
            {**_TOKENS, "intermediate_size": WIDTH, "qkv_bias": FLAG},
            first_token=True,
            options={"add_pooling_layer": False},
        ),
        "clip_vision_model": Family(
            "CLIPVisionConfig", "CLIPVisionModel", {**_TOKENS, "intermediate_size": WIDTH}
        ),
        "convnext": Family(
            "ConvNextConfig",
            "ConvNextModel",
            {
                **_STAGES,
                "num_stages": whole(1, 8),
                "patch_size": SIDE,
                "layer_norm_eps": SHARE,
                "layer_scale_init_value": SHARE,
            },
        ),
        "resnet": Family(
            "ResNetConfig",
            "ResNetModel",
            {
                **_STAGES,
                "embedding_size": WIDTH,
                "layer_type": one_of("basic", "bottleneck"),
                "downsample_in_first_stage": FLAG,
                "downsample_in_bottleneck": FLAG,
            },
        ),
    }
)
_IMAGES_AND_TEXT = {"clip": "clip_vision_model"}
_CODE, _QUANTIZED = "auto_map", "quantization_config"


def find_family(model_type: Any, where: str) -> Family:
    """Return the family of this name.

    Raises:
        DataError: there is no such family; the message lists them.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        valid = ", ".join([*FAMILIES, *_IMAGES_AND_TEXT])
        raise DataError(f"{where}: models of type {str(model_type)[:40]!r} are not built: valid are {valid}")
    return FAMILIES[model_type]


def own_fields(content: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Return the family that a config.json, from anyone, names, and the fields of it that are used here.

    Raises:
        DataError: the configuration is malformed, of another family, or names code.
    """
    if not isinstance(content, dict):
        raise DataError(f"{where}: not the configuration of a model: pass one of transformers")
    if content.get(_CODE):
        raise DataError(f"{where}: names code of its own ({_CODE}), which is never run: choose another model")
    if content.get(_QUANTIZED):
        raise DataError(
            f"{where}: its weights are quantized ({_QUANTIZED}): choose the model as it was trained"
        )
    whole = _IMAGES_AND_TEXT.get(str(content.get("model_type")))
    if whole is not None:
        return own_fields({"model_type": whole, **_part(content, where), _CODE: None}, where)
    model_type = content.get("model_type")
    family = find_family(model_type, where)
    found = {name: value for name, value in content.items() if name in family.fields}
    check_fields(family, found, where)
    return str(model_type), found


def check_fields(family: Family, found: Mapping[str, Any], where: str) -> None:
    """Reject a field that this family does not have, or a value that is not allowed."""
    for name, value in found.items():
        if name not in family.fields:
            raise DataError(f"{where}: has a foreign field {name[:40]!r}")
        if not family.fields[name].allows(value):
            raise DataError(f"{where}: {name} is {str(value)[:40]}: expected {family.fields[name]}")


def _part(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    part = content.get("vision_config")
    if not isinstance(part, dict):
        raise DataError(f"{where}: has no vision_config: pass a model that takes images")
    return part
