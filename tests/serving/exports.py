"""Exported models, made once: tracing a network takes seconds."""

import functools
from dataclasses import replace

import torch

from pmal.rejection.model import Rule
from pmal.rejection.new_class import add_class
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.onnx_file import seal
from pmal.serving.onnx.parity import Images
from tests.serving.tiny_model import make_model, pictures_of


def some_images(seed=3):
    """Twelve of each class, and twelve of none."""
    return torch.cat([pictures_of(kind, 12, seed) for kind in range(4)])


def with_added_class():
    """A fourth class, of noise, that the network does not know."""
    model = make_model()
    noise = pictures_of(3, 8, seed=5)
    return add_class(model, "noise", model.answer(noise).z, noise, [f"noise/{i}.png" for i in range(8)])[0]


def by_nearest_prototype(model):
    return replace(model, reference=replace(model.reference, distance="nearest"))


MODELS = {
    "distance": lambda: make_model(Rule("distance")),
    "combined": lambda: make_model(Rule("combined", 0.8, per_class=True)),
    "softmax": lambda: make_model(Rule("energy"), prototypes=False, channels=3),
    "added": with_added_class,
}


@functools.cache
def exported(name):
    """The model, and what `export_onnx` made of it."""
    model = MODELS[name]()
    images = some_images()
    if model.classifier.spec.channels == 3:
        images = images.expand(-1, 3, -1, -1).contiguous()
    return model, export_onnx(model, Images(images, "some images"))


def resealed(proto):
    """The bytes of a changed file, with the checksum of what it is now."""
    for entry in proto.metadata_props:
        if entry.key == "sha256":
            entry.value = "0" * 64
    return seal(proto.SerializeToString())
