"""How much work a network is, as torch counts it: no clock, so the same on every machine."""

import torch

from pmal.encoders.adapters import evaluating
from pmal.ensemble.classifier import Classifier


def multiplications(network: Classifier) -> int:
    """Return those in convolutions and matrix products while one image goes through the network."""
    # Importing it, and what it imports when it begins, takes about a second.
    from torch.utils.flop_counter import FlopCounterMode

    with evaluating(network), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.embed(network.spec.blank(1, network.mean.device))
    return int(counter.get_total_flops()) // 2
