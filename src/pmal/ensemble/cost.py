"""How much work a network is, counted from its layers: no clock, so the same on every machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pmal.encoders.adapters import evaluating
from pmal.ensemble.classifier import Classifier


@dataclass
class Cost:
    """What one image costs a network at least, whatever the program."""

    multiplications: int = 0
    """Forward, of modules with a weight. What others multiply, as torch's attention, counts as nothing."""
    training_multiplications: int = 0
    """Forward, and as many again for the gradient of a layer's weights, and of its input where it has one."""
    training_numbers: int = 0
    """Activations read and written in a training step: multiply by the bytes of a number."""

    @property
    def forward_flops(self) -> int:
        """A product and its sum are two."""
        return 2 * self.multiplications

    @property
    def training_flops(self) -> int:
        return 2 * self.training_multiplications


def network_cost(network: Classifier) -> Cost:
    """Counted layer by layer while one black image goes through the network, where it is.

    A convolution reads its input and writes its output, and as much again for each of its two gradients.
    Batch norm with its activation, as one, reads or writes its map three times forward (the statistics need
    all of it first) and five times backward. Weights and all else count as nothing.
    """
    spec, cost = network.spec, Cost()

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # Layers of foreign encoders may take and return anything, and be called by keywords alone.
        if not isinstance(output, Tensor):
            return
        read = [x for x in inputs[:1] if isinstance(x, Tensor)]
        passes, weight = 3 if any(x.requires_grad for x in read) else 2, getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() >= 2:
            products = weight[0].numel() * output.numel()
            cost.multiplications += products
            cost.training_multiplications += passes * products
        if isinstance(module, nn.BatchNorm2d):
            cost.training_numbers += 8 * output.numel()
        elif isinstance(module, nn.Conv2d):
            cost.training_numbers += passes * (sum(x.numel() for x in read) + output.numel())

    # Not on meta tensors, nor by torch's own counter: both import for a second before they begin, and some
    # foreign encoders do not run on meta tensors. Every encoder runs on an image.
    size = spec.image_size
    image = torch.zeros(1, spec.channels, size, size, dtype=spec.dtype, device=network.mean.device)
    # Gradients tell which inputs have one. None is computed, so nothing is kept for them.
    nothing_kept = saved_tensors_hooks(lambda tensor: None, lambda none: none)
    with evaluating(network), _hooked(network, count), torch.enable_grad(), nothing_kept:
        network.embed(image)
    return cost


@contextmanager
def _hooked(network: nn.Module, hook: Any) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in network.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
