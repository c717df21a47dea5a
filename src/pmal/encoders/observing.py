"""Statistics of the inputs of an encoder's layers, taken while an image is embedded.

An image that is far from all training images may still point in a known direction at the last layer. Early
layers distinguish it by how strong each channel is on average, and how much it varies over the image.

B images, C channels, F = 2 C statistics of a layer.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pmal.data.samples import evenly

MOST_LAYERS = 16
"""Largest number of observed layers, evenly spaced if there are more: this keeps what is stored small."""
MOST_CHANNELS = 128
"""Largest number of observed channels of a layer, every second or third if there are more."""
MOST_SIDE = 8
"""Largest number of rows and columns read of a map, evenly spaced if there are more.

To read all of a large map would take as long as a layer.
"""
_NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def observed_layers(encoder: nn.Module) -> dict[str, nn.Module]:
    """Return the observed layers by name: those that normalize.

    If an encoder has none, these are its convolutions and linear layers.
    """
    layers = list((_layers(encoder, _NORMS) or _layers(encoder, (nn.Conv2d, nn.Linear))).items())
    return dict(layers[i] for i in evenly(len(layers), MOST_LAYERS).tolist())


def channel_statistics(x: Tensor) -> Tensor:
    """Return the mean and the deviation of each channel over the positions of an image, (B, F).

    Maps are (B, C, H, W), tokens (B, N, C). A vector (B, C) has one position: its deviations are 0.

    >>> channel_statistics(torch.tensor([[[[0.0, 2.0]], [[3.0, 3.0]]]]))
    tensor([[1., 3., 1., 0.]])
    """
    # Steps, not lists of positions: lists would be copied to the GPU, which no graph can capture.
    if x.ndim == 2:
        values_BC = x[:, :: _step(x.shape[1], MOST_CHANNELS)].float()
        return torch.cat([values_BC, torch.zeros_like(values_BC)], dim=1)
    positions: tuple[int, ...]
    if x.ndim == 3:
        x, positions = x[:, :, :: _step(x.shape[2], MOST_CHANNELS)].float(), (1,)
    else:
        down, across = (_step(side, MOST_SIDE) for side in x.shape[2:4])
        x = x[:, :: _step(x.shape[1], MOST_CHANNELS), ::down, ::across].float()
        if down > 1 or across > 1:
            x = x.contiguous()  # to go through a map in steps, and again, takes twice as long as a copy
        positions = tuple(range(2, x.ndim))
    # Not var_mean, which takes five times as long if channels are innermost.
    mean_BC = x.mean(positions, keepdim=True)
    variance_BC = (x - mean_BC).square().mean(positions)
    return torch.cat([mean_BC.flatten(1), variance_BC.sqrt()], dim=1)


class Observer:
    """Observes the inputs of some layers of an encoder, inside `looking`.

    Several threads may use the encoder at the same time: each sees only its own images.
    """

    def __init__(self, encoder: nn.Module) -> None:
        layers = observed_layers(encoder)
        self.names = tuple(layers)
        self._found: dict[int, dict[str, Tensor]] = {}
        for name, layer in layers.items():
            layer.register_forward_pre_hook(partial(self._look, name))

    @contextmanager
    def looking(self) -> Iterator[dict[str, Tensor]]:
        """Yield a dictionary that collects the statistics of every layer that runs inside the block."""
        thread = threading.get_ident()
        self._found[thread] = {}
        try:
            yield self._found[thread]
        finally:
            del self._found[thread]

    def _look(self, name: str, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        found = self._found.get(threading.get_ident())
        if found is not None and inputs and isinstance(inputs[0], Tensor):
            found[name] = channel_statistics(inputs[0])


def _layers(encoder: nn.Module, kinds: tuple[type[nn.Module], ...]) -> dict[str, nn.Module]:
    return {name: layer for name, layer in encoder.named_modules() if isinstance(layer, kinds)}


def _step(count: int, most: int) -> int:
    """Return the smallest step that takes at most `most` of `count` items.

    >>> _step(7, 8), _step(256, 128), _step(14, 8)
    (1, 2, 2)
    """
    return -(-count // most)
