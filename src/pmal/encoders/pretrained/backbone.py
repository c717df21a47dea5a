"""The contract of a pretrained network: uint8 images in, features out, never trained by accident."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor, nn

from pmal.data.decoding.fitting import ImageShape
from pmal.encoders.pretrained.preprocessing import Preprocessing
from pmal.errors import UsageError

_BLOCK = re.compile(r"^(?:.*?\.)??(?:\w+_)?\d+(?=\.)")
"""The path of a weight up to the number of its block: `encoder.layer.3`, `encoder.layers.encoder_layer_3`."""


class Backbone(nn.Module):
    """A frozen network: uint8 images (B, 3, S, S) to features (B, `num_features`), float32.

    Args:
        name: the name that `create_backbone` was called with.
        body: normalized images (B, 3, S, S) to features (B, num_features).
        images: how an image becomes a square of side S, and the normalization of the body's training.
        num_features: number of features that the body returns.
        architecture: plain JSON from which `rebuild_backbone` makes the same body, untrained.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        body: nn.Module,
        images: Preprocessing,
        *,
        num_features: int,
        architecture: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.name, self.image_size, self.num_features = name, images.side, num_features
        self.image_shape = ImageShape(images.side, 3, images.resize)
        self.body = body
        # Not among the tensors of a weights file: they are in the description.
        self.register_buffer("mean", torch.tensor(images.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(images.std).view(1, 3, 1, 1), persistent=False)
        self._description = {
            "name": name,
            "image_size": images.side,
            "num_features": num_features,
            "mean": list(images.mean),
            "std": list(images.std),
            "resize": images.resize,
            "architecture": dict(architecture),
        }
        self.requires_grad_(False)
        self.train(False)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Return the features of uint8 images of this network's size."""
        self._check(images_BCHW)
        x_BCHW = (images_BCHW.to(self.mean.dtype) / 255 - self.mean) / self.std
        z_BD: Tensor = self.body(x_BCHW)
        return z_BD.float()

    def description(self) -> dict[str, Any]:
        """Return plain JSON from which `rebuild_backbone` makes the same network without its weights."""
        copied: dict[str, Any] = json.loads(json.dumps(self._description))
        return copied

    def stages(self) -> list[list[nn.Parameter]]:
        """Return the parameters of the body in order from input to output, those of a block together.

        Parameters before the first numbered block form the first stage, those after the last block the last.
        """
        runs = groupby(self.body.named_parameters(), key=lambda named: _block_of(named[0]))
        return [[parameter for _, parameter in run] for _, run in runs]

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is trained around this network: batch norm must not change."""
        return super().train(False)

    def _check(self, images: Tensor) -> None:
        side = self.image_size
        if images.dtype != torch.uint8:
            kind = str(images.dtype).removeprefix("torch.")
            raise UsageError(f"{self.name} takes uint8 images, not {kind}: pass pixels of 0..255 as they are")
        if images.ndim != 4 or images.shape[1] != 3:
            got = " x ".join(str(n) for n in images.shape)
            raise UsageError(
                f"{self.name} takes color images (B, 3, {side}, {side}), not {got}: "
                "repeat the one channel of gray images three times"
            )
        if images.shape[2] != side or images.shape[3] != side:
            got = f"{images.shape[2]} x {images.shape[3]}"
            raise UsageError(f"{self.name} takes images of {side} x {side} px, not {got}: resize them first")


class Cropped(nn.Module):
    """A network of another library behind a centered crop; `read` takes features (B, D) from its output."""

    def __init__(self, network: nn.Module, crop: int, read: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.network, self.crop, self.read = network, crop, read

    def forward(self, x_BCHW: Tensor) -> Tensor:
        start = (x_BCHW.shape[-1] - self.crop) // 2
        end = start + self.crop
        return self.read(self.network(x_BCHW[:, :, start:end, start:end]))


def backbone_digest(backbone: Backbone) -> str:
    """Return a SHA-256 over the description and all tensors, the key of cached features."""
    digest = hashlib.sha256(json.dumps(backbone.description(), sort_keys=True).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"\n{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _block_of(name: str) -> str:
    """Return the path of the block that a parameter belongs to, or an empty text.

    >>> [_block_of(name) for name in ("encoder.layer.3.bias", "layers.encoder_layer_3.bias", "conv1.bias")]
    ['encoder.layer.3', 'layers.encoder_layer_3', '']
    """
    found = _BLOCK.match(name)
    return found.group() if found else ""
