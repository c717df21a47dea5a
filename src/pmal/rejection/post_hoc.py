"""Scores that others compute from a finished network: Mahalanobis, ViM and ReAct. Larger is more unknown.

Two more that are often compared are in `scores.py`: KNN is `neighbors`, and energy is `energy`.

These scores appear in tables and cannot be chosen as `rejection.score`, because a bundle and an exported
file would have to contain what each is fitted to. All of it is in float64: differences of near embeddings
are small.

Shapes: N training samples, B samples, D channels, K classes, R directions.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pmal.data.samples import evenly
from pmal.errors import UsageError
from pmal.rejection.scores import energy_score

REACT_SHARE = 0.9
"""Share of training activations that ReAct does not clip, as in its paper."""
_ROWS = 8192
"""Number of samples that are converted to float64 at a time."""
_QUANTILE_NUMBERS = 1 << 24
"""Largest number of activations that ReAct's limit is computed from; of more, evenly spaced samples."""


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """One Gaussian per class with a shared covariance, in coordinates in which it is the identity."""

    means_KR: Tensor
    whitening_DR: Tensor


@dataclass(frozen=True, eq=False)
class VirtualLogit:
    """Directions in which training embeddings hardly vary, and the weight of a step there, in logits."""

    origin_D: Tensor
    residual_DR: Tensor
    alpha: float


def fit_gaussians(z_ND: Tensor, labels_N: Tensor) -> ClassGaussians:
    """Return class means and the shared covariance of embeddings.

    Directions in which no class varies are left out, as the pseudo-inverse in the paper's code does.
    """
    classes, index_N = torch.unique(labels_N, return_inverse=True)
    means_KD = torch.stack([z_ND[index_N == k].double().mean(dim=0) for k in range(len(classes))])
    values_D, vectors_DD = torch.linalg.eigh(_second_moment(z_ND, means_KD, index_N))
    floor = values_D.amax() * len(values_D) * torch.finfo(torch.float64).eps
    kept_D = values_D > floor
    whitening_DR = vectors_DD[:, kept_D] / values_D[kept_D].sqrt()
    return ClassGaussians(means_KD @ whitening_DR, whitening_DR)


def mahalanobis_score(z_BD: Tensor, gaussians: ClassGaussians) -> Tensor:
    """Return the squared Mahalanobis distance to the nearest class mean (Lee et al., NeurIPS 2018)."""
    white_BR = z_BD.double() @ gaussians.whitening_DR
    # Matrix products would lose all digits of a sample near a mean.
    exact = "donot_use_mm_for_euclid_dist"
    distance_BK = torch.cdist(white_BR, gaussians.means_KR, compute_mode=exact)
    return _broken_is_unknown(distance_BK.amin(dim=1).square(), z_BD)


def principal_directions(channels: int) -> int:
    """Return the number of principal directions of ViM: its paper's, or half of few channels."""
    return 1000 if channels >= 2048 else 512 if channels >= 768 else channels // 2


def fit_vim(z_ND: Tensor, weight_KD: Tensor, bias_K: Tensor, principal: int | None = None) -> VirtualLogit:
    """Return the residual space of training embeddings, with its origin where all logits are zero.

    Args:
        z_ND: training embeddings.
        weight_KD: of the linear head.
        bias_K: of the linear head.
        principal: number of principal directions. None: the paper's.

    Raises:
        UsageError: `principal` is negative, or not less than the number of channels.
    """
    channels = z_ND.shape[1]
    kept = principal_directions(channels) if principal is None else principal
    if not 0 <= kept < channels:
        raise UsageError(f"principal is {kept}: embeddings have {channels} channels, pass fewer than these")
    weight_KD, bias_K = weight_KD.double(), bias_K.double()
    origin_D = -torch.linalg.pinv(weight_KD) @ bias_K
    _, vectors_DD = torch.linalg.eigh(_second_moment(z_ND, origin_D[None]))
    residual_DR = vectors_DD[:, : channels - kept]  # eigenvalues rise
    parts = [z.double() for z in torch.split(z_ND, _ROWS)]
    largest = torch.cat([(z @ weight_KD.T + bias_K).amax(dim=1) for z in parts]).mean()
    length = torch.cat([torch.linalg.vector_norm((z - origin_D) @ residual_DR, dim=1) for z in parts]).mean()
    return VirtualLogit(
        origin_D, residual_DR, float(largest / length.clamp(min=torch.finfo(torch.float64).tiny))
    )


def vim_score(z_BD: Tensor, logits_BK: Tensor, vim: VirtualLogit) -> Tensor:
    """Return the virtual logit plus the free energy of the others (Wang et al., CVPR 2022)."""
    residual_B = torch.linalg.vector_norm((z_BD.double() - vim.origin_D) @ vim.residual_DR, dim=1)
    return _broken_is_unknown(vim.alpha * residual_B + energy_score(logits_BK), z_BD)


def fit_react(z_ND: Tensor) -> float:
    """Return the limit that a share of REACT_SHARE of all training activations is below."""
    rows = evenly(len(z_ND), max(1, _QUANTILE_NUMBERS // z_ND.shape[1]))
    return float(np.quantile(z_ND[torch.from_numpy(rows)].float().cpu().numpy(), REACT_SHARE))


def react_score(z_BD: Tensor, limit: float, weight_KD: Tensor, bias_K: Tensor) -> Tensor:
    """Return the free energy of the logits of clipped embeddings (Sun et al., NeurIPS 2021)."""
    clipped_BD = z_BD.double().clamp(max=limit)
    return _broken_is_unknown(energy_score(clipped_BD @ weight_KD.double().T + bias_K.double()), z_BD)


def _second_moment(z_ND: Tensor, origins_KD: Tensor, index_N: Tensor | None = None) -> Tensor:
    """Return the mean outer product of differences to origins, with no float64 copy of all embeddings."""
    total_DD = origins_KD.new_zeros(z_ND.shape[1], z_ND.shape[1])
    index_N = torch.zeros(len(z_ND), dtype=torch.int64) if index_N is None else index_N
    for z, index in zip(torch.split(z_ND, _ROWS), torch.split(index_N, _ROWS), strict=True):
        difference_BD = z.double() - origins_KD[index]
        total_DD += difference_BD.T @ difference_BD
    return total_DD / len(z_ND)


def _broken_is_unknown(score_B: Tensor, z_BD: Tensor) -> Tensor:
    """Return scores in which an overflow or NaN is infinite, so that it does not pass as known."""
    return score_B.masked_fill(~z_BD.isfinite().all(dim=1) | score_B.isnan(), math.inf)
