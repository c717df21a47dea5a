"""The contract of an encoder, and feature extractors of other origin made to fit it."""

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pmal.errors import UsageError, first_line

LIBRARY_IMAGE_SIZE = 224
"""What the models of timm and torchvision were made for; some accept nothing else."""


class Encoder(nn.Module):
    """The contract: `forward` takes images (B, C, H, W) and returns embeddings (B, `num_features`)."""

    num_features: int


class FeatureAdapter(Encoder):
    """Any module that returns features (B, D), or maps (B, D, H, W), which are averaged over their pixels.

    If `num_features` is not given, a dry run on one black image finds it.

    >>> FeatureAdapter(nn.Conv2d(1, 7, 3), in_channels=1, image_size=8).num_features
    7
    """

    def __init__(
        self, body: nn.Module, num_features: int | None = None, *, in_channels: int = 3, image_size: int = 32
    ) -> None:
        super().__init__()
        self.body = body
        if num_features is None:
            num_features = _dry_run(body, in_channels, image_size).shape[1]
        self.num_features = num_features
        self.middle = _middle(body)

    def forward(self, images: Tensor) -> Tensor:
        return self._features(self.body(images))

    def lower(self, images: Tensor) -> Tensor:
        """Return what the first half of the layers gives; the images if the body is no sequence."""
        return _through(self.body, slice(0, self.middle), images)

    def upper(self, hidden: Tensor) -> Tensor:
        """Return what the other half gives, such that the two halves together are `forward`."""
        if not self.middle:
            return self.forward(hidden)
        return self._features(_through(self.body, slice(self.middle, None), hidden))

    def _features(self, features: Any) -> Tensor:
        z_BD = pooled(features)
        if z_BD.shape[1] != self.num_features:
            raise UsageError(
                f"{_kind(self.body)} returned {z_BD.shape[1]} features, but {self.num_features} were "
                "promised: set num_features to what it returns"
            )
        return z_BD


class Projected(Encoder):
    """An encoder and one linear layer of the same width: embeddings that take either sign."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_features = encoder.num_features
        self.projection = nn.Linear(self.num_features, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        z_BD: Tensor = self.projection(self.encoder(images))
        return z_BD


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluate in the block without a trace in batch norm's statistics; restore the mode of every part."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


def lower_half(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return what an encoder's first half makes of images; the images themselves if it cannot be cut."""
    if isinstance(encoder, Projected):
        return lower_half(encoder.encoder, images)
    return encoder.lower(images) if isinstance(encoder, FeatureAdapter) else images


def upper_half(encoder: nn.Module, hidden: Tensor) -> Tensor:
    """Return embeddings from what `lower_half` made: the two together are the encoder."""
    if isinstance(encoder, Projected):
        projected_BD: Tensor = encoder.projection(upper_half(encoder.encoder, hidden))
        return projected_BD
    z_BD: Tensor = encoder.upper(hidden) if isinstance(encoder, FeatureAdapter) else encoder(hidden)
    return z_BD


LIBRARIES = ("timm", "torchvision")
"""Encoders named `<library>/<model>`; the library is imported when one of them is created, not before."""


def library_encoder(library: str, model: str, in_channels: int, image_size: int | None) -> FeatureAdapter:
    """Return a model of timm or torchvision without its classification head, untrained."""
    if ":" in model:  # timm would fetch weights from a hub, whoever wrote the name
        fix = f"name a model that {library} itself defines, without ':'"
        raise UsageError(f"encoder '{library}/{model}': {fix}")
    if library == "torchvision" and in_channels != 3:
        raise UsageError(
            f"encoder 'torchvision/{model}' takes images of 3 channels, not {in_channels}: "
            "convert the images to RGB, or choose an encoder that is not from torchvision"
        )
    body = build_model(library, model, in_channels)
    return FeatureAdapter(body, in_channels=in_channels, image_size=image_size or LIBRARY_IMAGE_SIZE)


def build_model(library: str, model: str, in_channels: int = 3, pretrained: bool = False) -> nn.Module:
    """Return a network of timm or torchvision without its classification head."""
    module = _import_library(library, model)
    try:
        if library == "timm":
            own = {"pretrained": pretrained, "num_classes": 0, "in_chans": in_channels}
            network: nn.Module = module.create_model(model, **own)
            return network
        weights = module.models.get_model_weights(model).DEFAULT if pretrained else None
        network = module.models.get_model(model, weights=weights)
    except Exception as error:  # unknown models, no network, damaged files: each library has its own errors
        fix = "fetch it on a machine that is online, or pass --weights FILE.safetensors" if pretrained else ""
        raise UsageError(
            f"{library} cannot build '{model}' ({first_line(error)}): {fix or 'choose another of its models'}"
        ) from error
    _remove_head(network, model)
    return network


def pooled(features: Any) -> Tensor:
    """Return features (B, D) as they are, and maps (B, D, H, W) averaged over their pixels."""
    if isinstance(features, Tensor) and features.ndim == 2:
        return features
    if isinstance(features, Tensor) and features.ndim == 4:
        # Unlike adaptive_avg_pool2d, the mean has a deterministic gradient on CUDA. It is taken with the
        # channels last, when networks are trained, so that its gradient lies in memory as the maps do.
        return features.movedim(1, 3).mean(dim=(1, 2))
    got = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else f"a {type(features).__name__}"
    raise UsageError(
        f"an encoder must return features (B, D) or maps (B, D, H, W), not {got}: wrap the part that does"
    )


def _middle(body: nn.Module) -> int:
    """Return where a sequence of layers is cut: before the middle one of those with weights; else 0.

    There, and not between a layer and its norm or activation, which may work in place. 0 if it cannot be cut.
    """
    if type(body) is not nn.Sequential:
        return 0
    starts = [i for i, layer in enumerate(body) if any(weight.dim() > 1 for weight in layer.parameters())]
    return starts[len(starts) // 2] if starts else 0


def _through(body: nn.Module, part: slice, x: Tensor) -> Tensor:
    """Run layer by layer: a slice of a Sequential would be a new module at every call."""
    if isinstance(body, nn.Sequential):
        for layer in list(body)[part]:
            x = layer(x)
    return x


def _dry_run(body: nn.Module, in_channels: int, image_size: int) -> Tensor:
    """Return the features of one black image; the body keeps its modes and batch statistics."""
    image = torch.zeros(1, in_channels, image_size, image_size)
    weight = next(body.parameters(), image)
    image = image.to(weight.device, weight.dtype)
    try:
        with evaluating(body), torch.no_grad():
            return pooled(body(image))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{_kind(body)} fails on an image of {in_channels} x {image_size} x {image_size} "
            f"({first_line(error)}): set in_channels and image_size to what it accepts"
        ) from error


def _import_library(library: str, model: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise UsageError(
            f"encoder '{library}/{model}' needs {library}, which cannot be imported "
            f"({first_line(error)}): pip install {library}"
        ) from error


def _remove_head(body: nn.Module, model: str) -> None:
    """Put the identity in the place of the classifier of one of torchvision's models."""
    for name in ("fc", "classifier", "head", "heads"):
        if isinstance(getattr(body, name, None), nn.Module):
            setattr(body, name, nn.Identity())
            return
    raise UsageError(
        f"encoder 'torchvision/{model}' has no fc, classifier, head or heads to remove: "
        "choose a classification model"
    )


def _kind(body: nn.Module) -> str:
    return f"the wrapped {type(body).__name__}"
