"""Encoders: image -> embedding z. Each is a module with `num_features` and `forward(images) -> z`."""

# Importing a module registers its encoders.
from pmal.encoders import oscri, precomputed, resnet, small, wide_resnet
from pmal.encoders.adapters import Encoder, FeatureAdapter, lower_half, upper_half
from pmal.encoders.registry import create_encoder, list_encoders, register_encoder

__all__ = [
    "Encoder",
    "FeatureAdapter",
    "create_encoder",
    "list_encoders",
    "lower_half",
    "oscri",
    "precomputed",
    "register_encoder",
    "resnet",
    "small",
    "upper_half",
    "wide_resnet",
]
