"""What the second training adds to the cross entropy."""

import torch
from torch import Tensor

from pmal.errors import UsageError


def prototype_margin_loss(distances_BK: Tensor, labels_B: Tensor, *, margin: float = 0.5) -> Tensor:
    """Mean of [d(own class) - d(nearest other class) + margin]+: zero once every sample keeps the margin.

    >>> distances_BK = torch.tensor([[0.1, 0.9, 1.0], [0.4, 0.3, 1.0]])
    >>> prototype_margin_loss(distances_BK, torch.tensor([0, 0])).item()  # 0 and 0.4 - 0.3 + 0.5
    0.30000001192092896
    """
    if distances_BK.ndim != 2 or distances_BK.shape[1] < 2:
        raise UsageError(
            f"distances have shape {tuple(distances_BK.shape)}: pass (B, K) of 2 or more classes"
        )
    own_B1 = distances_BK.gather(1, labels_B[:, None])
    other_B1 = distances_BK.scatter(1, labels_B[:, None], torch.inf).amin(dim=1, keepdim=True)
    return (own_B1 - other_B1 + margin).clamp(min=0).mean()
