"""A network that embeds images and classifies the embedding: an encoder, and a head on top of it."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.tensors import load_tensors, save_tensors
from pmal.config import EncoderConfig, build
from pmal.data.decoding.decode import BILINEAR
from pmal.data.decoding.fitting import ImageShape
from pmal.data.feeding.augmentation import normalize
from pmal.encoders import create_encoder
from pmal.encoders.observing import Observer
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.creating import rebuild_backbone
from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from pmal.errors import DataError, UsageError

Statistics = dict[str, torch.Tensor]
"""What the layers of an encoder see of images (B, F), by their names."""
FEATURES = "features"
"""The name of what a pretrained network makes of an image, in the place of layers."""


@dataclass(frozen=True)
class ClassifierSpec:
    """All that is needed to build the network again, before its weights are loaded."""

    encoder: EncoderConfig
    class_names: tuple[str, ...]
    image_size: int
    channels: int
    head: HeadConfig = field(default_factory=HeadConfig)
    backbone: Mapping[str, Any] = field(default_factory=dict)
    """The frozen network in front of the encoder, as it describes itself; empty if there is none."""

    @property
    def network_name(self) -> str:
        """What makes embeddings of images, as the user calls it."""
        return str(self.backbone["name"]) if self.backbone else self.encoder.name

    @property
    def image_shape(self) -> ImageShape:
        """Side, channels and resizing, as a part is opened for the network."""
        return ImageShape(self.image_size, self.channels, self.backbone.get("resize", BILINEAR))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the images; embeddings in their place, which are one pixel each, are floats."""
        return torch.float32 if self.image_size == 1 else torch.uint8

    def blank(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return so many black images, as the network takes them."""
        return torch.zeros(count, *self.image_shape.of_tensor, dtype=self.dtype, device=device)


class Classifier(nn.Module):
    """Embedding and logits of images; the training set's normalization is part of it."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, spec: ClassifierSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone: Backbone | None = rebuild_backbone(spec.backbone) if spec.backbone else None
        size, channels = (1, self.backbone.num_features) if self.backbone else spec.image_shape[:2]
        config = spec.encoder
        self.encoder = create_encoder(
            config.name, channels, size, projection=config.projection, **config.options
        )
        features = int(self.encoder.num_features)
        self.head = create_head(
            spec.head, HeadShape(features, len(spec.class_names), channels, size, config.bias)
        )
        self._observer: Observer | None = None
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    @property
    def num_features(self) -> int:
        """Columns of an embedding."""
        return int(self.encoder.num_features) + self.head.extra_features

    def set_normalization(self, mean_C: torch.Tensor, std_C: torch.Tensor) -> None:
        """Set the mean and deviation that images are normalized by."""
        self.mean.copy_(mean_C)
        self.std.copy_(std_C)

    def use_channels_last(self) -> "Classifier":
        """Lay convolution weights out with the channels innermost: convolutions are fastest so."""
        for parameter in self.parameters():
            if parameter.dim() == 4:
                # Not contiguous(): weights of one input channel are both, and would keep the first layer's
                # maps in the other layout.
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
        return self

    @property
    def is_channels_last(self) -> bool:
        """Whether its convolution weights are laid out so."""
        return any(weight.dim() == 4 and not weight.is_contiguous() for weight in self.parameters())

    def forward(self, normalized_BCHW: torch.Tensor) -> torch.Tensor:
        """Return logits of normalized images: what is trained."""
        logits_BK: torch.Tensor = self.head(self.encoder(normalized_BCHW))
        return logits_BK

    def embed(self, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings z_BD and logits_BK of uint8 images: what everything after training uses.

        Floats are what the backbone made of images already.
        """
        normalized_BCHW = normalize(self.features(images_BCHW), self.mean, self.std)
        z_BD = self.encoder(normalized_BCHW.to(self.encoder_dtype)).to(normalized_BCHW.dtype)
        z_BD = self.head.complete(normalized_BCHW, z_BD)
        return z_BD, self.head(z_BD)

    def embed_observed(self, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Statistics]:
        """Return what `embed` does, and by name what was seen: features, or what the layers saw."""
        if self.on_features:
            features_BF11 = self.features(images_BCHW)
            return (*self.embed(features_BF11), {FEATURES: features_BF11.flatten(1).float()})
        with self.observer.looking() as found:
            z_BD, logits_BK = self.embed(images_BCHW)
        return z_BD, logits_BK, found

    def features(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return what the backbone makes of images, (B, F, 1, 1); without one, the images themselves."""
        if self.backbone is None or images_BCHW.is_floating_point():
            return images_BCHW
        features_BF: torch.Tensor = self.backbone(images_BCHW)
        return features_BF[:, :, None, None]

    @property
    def on_features(self) -> bool:
        """Whether the encoder takes the features of another network, and no images."""
        return self.backbone is not None or self.spec.image_size == 1

    @property
    def observed(self) -> tuple[str, ...]:
        """The names of what `embed_observed` sees."""
        return (FEATURES,) if self.on_features else self.observer.names

    @property
    def observer(self) -> Observer:
        """What looks at the layers of the encoder, from the first call on."""
        if self._observer is None:
            self._observer = Observer(self.encoder)
        return self._observer

    @property
    def encoder_dtype(self) -> torch.dtype:
        """The precision that the encoder computes in; what comes before and after it is in float32."""
        return next((weight.dtype for weight in self.encoder.parameters()), self.mean.dtype)


def with_head(model: Classifier, head: HeadConfig) -> Classifier:
    """Return the same network with another head, which starts from what the old one has learned."""
    other = Classifier(replace(model.spec, head=head)).use_channels_last().to(model.mean.device)
    other.encoder.load_state_dict(model.encoder.state_dict())
    other.set_normalization(model.mean, model.std)
    other.head.start_from(model.head)
    return other.train(model.training)


def from_pixels(model: Classifier, backbone: Backbone) -> Classifier:
    """Return the same network behind the one that made its features, so that it takes images."""
    size, about = backbone.image_size, backbone.description()
    spec = replace(model.spec, image_size=size, channels=3, backbone=about)
    whole = Classifier(spec).use_channels_last()
    assert whole.backbone is not None
    whole.backbone.load_state_dict(backbone.state_dict())
    whole.load_state_dict(model.state_dict(), strict=False)
    return whole.to(model.mean.device).eval()


def in_half_precision(model: Classifier) -> Classifier:
    """Return a copy whose encoder computes in float16, with three bits more than bfloat16. For a GPU."""
    if model.mean.device.type == "cpu":
        raise UsageError("half precision is slower on a CPU: leave it out, or use a GPU (device cuda)")
    half = copy.deepcopy(model)
    half.encoder.half()
    return half.use_channels_last()


def save_classifier(path: Path, model: Classifier, data: str, ranks: Ranks = ALONE) -> None:
    """Save the weights with what they belong to; `data` is the digest of their training set."""
    save_tensors(path, model.state_dict(), {"classifier": asdict(model.spec), "data": data}, ranks)


def load_classifier(
    path: Path, device: torch.device, class_names: Sequence[str], data: str = "", ranks: Ranks = ALONE
) -> Classifier:
    """Return a trained classifier, ready for use; reject one of other classes (or data, if given)."""
    tensors, about = load_tensors(path, ranks)
    if "classifier" not in about:
        raise DataError(f"{path}.json: not the weights of a classifier")
    model = Classifier(build(ClassifierSpec, about["classifier"]))
    if model.spec.class_names != tuple(class_names) or (data and about["data"] != data):
        raise other_data(path)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise DataError(f"{path}.json: its weights belong to another network than it describes") from None
    return model.to(device).eval()


def other_data(path: Path) -> DataError:
    """Return the error that weights, or a checkpoint, are of other data and cannot be resumed."""
    return DataError(f"{path}.json: trained on other classes or images than the data hold now: fit a new run")
