"""What a training step costs a network at least: multiplications, and numbers read and written."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pmal.encoders.adapters import evaluating
from pmal.ensemble.classifier import Classifier


class TrainingCost(NamedTuple):
    """Of one image, forward and backward."""

    flops: int
    """Of convolutions and matrix products; a product and its sum are two."""
    numbers: int
    """Activations read and written: multiply by the bytes of a number."""


def training_cost(network: Classifier) -> TrainingCost:
    """Count while one black image goes through the network and back. Use a network of no further use.

    A convolution reads its input and writes its output, and as much again for each of its two gradients.
    Batch norm with its activation, as one, reads or writes its map three times forward (the statistics need
    all of it first) and five times backward. Weights and all else count as nothing.
    """
    numbers = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal numbers
        if isinstance(module, nn.BatchNorm2d):
            numbers += 8 * output.numel()
        elif isinstance(module, nn.Conv2d):
            passes = 3 if inputs[0].requires_grad else 2
            numbers += passes * (inputs[0].numel() + output.numel())

    for module in network.modules():
        module.register_forward_hook(count)
    with evaluating(network), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        _, logits = network.embed(network.spec.blank(1, network.mean.device))
        torch.autograd.backward(logits.sum())
    return TrainingCost(counter.get_total_flops(), numbers)
