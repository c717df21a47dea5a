"""How much work a network is, as torch counts it: no clock, so the same on every machine."""

from dataclasses import dataclass

import torch

from pmal.encoders.adapters import evaluating
from pmal.ensemble.classifier import Classifier


@dataclass(frozen=True)
class Cost:
    """What one image costs a network, forward."""

    multiplications: int
    """Multiplications in convolutions and matrix products."""

    @property
    def forward_flops(self) -> int:
        """Operations of one pass; a product and its sum are two."""
        return 2 * self.multiplications


def network_cost(network: Classifier) -> Cost:
    """Return what torch counts while one black image goes through the network, on its device."""
    # Importing it, and what it imports when it begins, takes about a second.
    from torch.utils.flop_counter import FlopCounterMode

    with evaluating(network), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.embed(black_image(network))
    return Cost(counter.get_total_flops() // 2)


def black_image(network: Classifier) -> torch.Tensor:
    """Return a batch of one, on the network's device."""
    spec = network.spec
    shape = 1, spec.channels, spec.image_size, spec.image_size
    return torch.zeros(shape, dtype=spec.dtype, device=network.mean.device)
