"""The term that the second training adds to the cross entropy."""

from torch import Tensor

from pmal.errors import UsageError


def prototype_margin_loss(
    distances: Tensor, labels: Tensor, *, margin: float = 0.5, temperature: float = 0.0
) -> Tensor:
    """Return the mean loss of samples that are nearer to another class's prototypes than the margin allows.

    With gap_k = d(own class) - d(class k) + margin, the loss of a sample is t log(1 + sum_k exp(gap_k / t)),
    k over the other classes. At temperature t = 0, its limit, this is the paper's hinge: the largest gap, or
    0 if every gap is negative. A positive temperature pushes away from every class, the nearest most, and
    keeps pushing after the margin is reached.

    Args:
        distances: distance of each sample to each class's prototypes, (B, K), K >= 2.
        labels: class of each sample, (B,).
        margin: how much nearer the own class should be.
        temperature: 0 for the hinge; the larger, the more the classes beyond the nearest count.

    Returns:
        The mean over the samples, a scalar.

    Raises:
        UsageError: the distances are not a matrix with a column for each of two or more classes, or the
            temperature is negative.

    >>> import torch
    >>> distances = torch.tensor([[0.1, 0.9, 1.0], [0.4, 0.3, 1.0]])
    >>> prototype_margin_loss(distances, torch.tensor([0, 0])).item()  # 0 and 0.4 - 0.3 + 0.5
    0.30000001192092896
    >>> round(prototype_margin_loss(distances, torch.tensor([0, 0]), temperature=0.1).item(), 4)
    0.3035
    """
    if distances.ndim != 2 or distances.shape[1] < 2:
        raise UsageError(f"distances have shape {tuple(distances.shape)}: pass (B, K) of 2 or more classes")
    if not temperature >= 0:
        raise UsageError(f"temperature is {temperature}: pass 0 for the hinge, or a positive number")
    own_B1 = distances.gather(1, labels[:, None])
    # The own class's column becomes the 1 inside the log, and the 0 of the hinge.
    gaps_BK = (own_B1 - distances + margin).scatter(1, labels[:, None], 0.0)
    if temperature == 0:
        return gaps_BK.amax(dim=1).mean()
    return temperature * (gaps_BK / temperature).logsumexp(dim=1).mean()
