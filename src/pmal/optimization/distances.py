"""How far an embedded sample lies from each class's set of prototypes.

Both distances are 1 - cosine, from 0 to 2. A vector of length zero has no direction: as a sample, or as the
answer of a class, it is at distance 1. A class without any prototype is as far away as can be, at 2, and has
no gradient. Results and gradients are finite wherever the embeddings are, however large or small.

B samples, K classes, T prototypes of the class that has most, D channels.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pmal.errors import UsageError
from pmal.geometry.logits import Array

FARTHEST = 2.0

Distance = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Embeddings (B, D), prototypes (K, T, D) and mask (K, T) in, distances (B, K) out."""


def point_to_set_distance(z: Array, prototypes: Array, mask: Array | None = None) -> Tensor:
    """Return the distance of each sample to each class's prototypes, 1 - cos(z, att).

    Each class answers with the prototypes that the sample asks for: att is the sum of the class's prototypes,
    weighted by softmax(z . p / sqrt(D)). Differentiable in both arguments.

    Args:
        z: Embeddings, (B, D).
        prototypes: Those of each class, (K, T, D).
        mask: False where a class has fewer than T prototypes; what stands there does not count, (K, T).

    Returns:
        Distances from 0 to 2, (B, K).

    Raises:
        UsageError: The shapes do not fit together, or the mask is not bool.

    >>> prototypes = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> point_to_set_distance(torch.tensor([[3.0, 0.0]]), prototypes, mask).round(decimals=3)
    tensor([[0.1060, 1.0000]])
    """
    z_BD, p_KTD, mask_KT = _prepare(z, prototypes, mask)
    weights_BKT, z_BD, p_KTD = _attend(z_BD, p_KTD, mask_KT)
    attended_BKD = torch.einsum("bkt,ktd->bkd", weights_BKT, p_KTD)
    product_BK = torch.einsum("bd,bkd->bk", z_BD, attended_BKD)
    cosine_BK = (product_BK / _length(z_BD)[:, None] / _length(attended_BKD)).clamp(-1, 1)
    return (1 - cosine_BK).where(mask_KT.any(dim=1), FARTHEST)


def nearest_distance(z: Array, prototypes: Array, mask: Array | None = None) -> Tensor:
    """Return the distance of each sample to each class's nearest prototype, 1 - cos(z, p), (B, K).

    Arguments and errors are those of `point_to_set_distance`.

    >>> prototypes = torch.tensor([[[0.0, 1.0], [5.0, 5.0]], [[0.0, 2.0], [-1.0, 0.0]]])
    >>> nearest_distance(torch.tensor([[3.0, 0.0]]), prototypes).round(decimals=3)
    tensor([[0.2930, 1.0000]])
    """
    z_BD, p_KTD, mask_KT = _prepare(z, prototypes, mask)
    cosine_BKT = _products(_unit(z_BD), _unit(p_KTD)).clamp(-1, 1)
    return 1 - cosine_BKT.masked_fill(~mask_KT, 1 - FARTHEST).amax(dim=2)


def attention_weights(z: Array, prototypes: Array, mask: Array | None = None) -> Tensor:
    """Return the share of each prototype in its class's answer to a sample, (B, K, T).

    The shares of a class sum to 1; masked prototypes have none. Arguments and errors are those of
    `point_to_set_distance`.

    >>> attention_weights(torch.tensor([[2.0]]), torch.tensor([[[1.0], [1.0], [-9.0]]])).round(decimals=3)
    tensor([[[0.5000, 0.5000, 0.0000]]])
    """
    return _attend(*_prepare(z, prototypes, mask))[0]


DISTANCES: dict[str, Distance] = {"point-to-set": point_to_set_distance, "nearest": nearest_distance}


def _prepare(z: Array, prototypes: Array, mask: Array | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of one type whose shapes fit together, and zeros where the mask is False."""
    z_BD, p_KTD = _floats(z), _floats(prototypes)
    shapes = f"{tuple(z_BD.shape)} and {tuple(p_KTD.shape)}"
    if z_BD.ndim != 2 or p_KTD.ndim != 3 or z_BD.shape[1] != p_KTD.shape[2] or 0 in p_KTD.shape:
        raise UsageError(f"embeddings and prototypes have shapes {shapes}: pass (B, D) and (K, T, D)")
    if mask is None:
        mask_KT = torch.ones(p_KTD.shape[:2], dtype=torch.bool, device=p_KTD.device)
    else:
        mask_KT = _tensor(mask)
    if mask_KT.dtype != torch.bool or mask_KT.shape != p_KTD.shape[:2]:
        kind = f"{mask_KT.dtype} of shape {tuple(mask_KT.shape)}"
        raise UsageError(f"the mask is {kind}: pass bool of shape {tuple(p_KTD.shape[:2])}")
    dtype = torch.promote_types(z_BD.dtype, p_KTD.dtype)
    return z_BD.to(dtype), p_KTD.to(dtype).masked_fill(~mask_KT[:, :, None], 0.0), mask_KT


def _tensor(values: Array) -> Tensor:
    # Arrays are copied, because torch warns of those that it cannot write to.
    return values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))


def _floats(values: Array) -> Tensor:
    tensor = _tensor(values)
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _attend(z_BD: Tensor, p_KTD: Tensor, mask_KT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights (B, K, T), and both arguments at a scale at which a cosine can be taken of them."""
    z_BD, z_scale_B1 = _rescale(z_BD, 1)
    p_KTD, p_scale_K11 = _rescale(p_KTD, (1, 2))
    # At such sharpness one prototype has all the weight, and nothing that follows from it overflows.
    sharpest = torch.finfo(z_BD.dtype).max ** 0.5
    sharpness_BK = (z_scale_B1 / math.sqrt(z_BD.shape[1]) * p_scale_K11.flatten()).clamp(max=sharpest)
    logits_BKT = _products(z_BD, p_KTD) * sharpness_BK[:, :, None]
    # Not minus infinity: a class without prototypes would have NaN on the way, if not at the end.
    logits_BKT = logits_BKT.masked_fill(~mask_KT, torch.finfo(z_BD.dtype).min)
    return logits_BKT.softmax(dim=2).masked_fill(~mask_KT, 0.0), z_BD, p_KTD


def _products(z_BD: Tensor, p_KTD: Tensor) -> Tensor:
    """Return z . p of every sample and prototype, (B, K, T), as one matrix product."""
    return (z_BD @ p_KTD.flatten(0, 1).T).view(-1, *p_KTD.shape[:2])


def _unit(x: Tensor) -> Tensor:
    """Return vectors of length one; those of length zero stay zero."""
    x, _ = _rescale(x, -1)
    return x / _length(x)[..., None]


def _length(x: Tensor) -> Tensor:
    """Return what a vector is divided by to have length one; 1 for a vector of length zero."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return length.where(length > 0, 1.0)


def _rescale(x: Tensor, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return x / scale and the scale, the largest magnitude along `dim`: squares neither overflow nor vanish.

    A cosine does not depend on the scale, so it is a constant to autograd. Vectors so short that their
    gradient would overflow count as zero.
    """
    largest = x.detach().abs().amax(dim, keepdim=True)
    too_short = largest <= torch.finfo(x.dtype).tiny ** 0.5
    scale = largest.masked_fill(too_short, 1.0)
    return (x / scale).masked_fill(too_short, 0.0), scale
