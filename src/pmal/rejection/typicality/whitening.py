"""Whitening of statistics: after it, training samples have a variance of one in every direction.

N training samples, F statistics.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.errors import DataError

Floats = NDArray[np.float32] | NDArray[np.float64]
_SMALLEST = 1e-12
"""A direction counts as constant if its variance is below this share of the mean variance."""


def principal_directions(statistics_NF: Floats, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the mean, and the directions in which samples differ most, scaled to unit variance.

    The covariance is Ledoit and Wolf's shrunk one. With all directions, the length of a difference to the
    mean is its Mahalanobis distance.

    Args:
        statistics_NF: of training samples.
        most: number of directions at most. None: all.
    """
    covariance_FF = _shrunk_covariance(statistics_NF)
    values_F, vectors_FF = np.linalg.eigh(covariance_FF)  # in rising order
    directions_FF = vectors_FF / np.sqrt(values_F.clip(min=_floor(covariance_FF)))
    kept = directions_FF if most is None else directions_FF[:, -most:]
    mean_F = statistics_NF.astype(np.float64).mean(axis=0)
    return torch.from_numpy(mean_F).float(), torch.from_numpy(kept.copy()).float()


def whitening_matrix(statistics_NF: Floats) -> Tensor:
    """Return a matrix (F, F) after which the length of a difference is its Mahalanobis distance.

    It is float32. The covariance is Ledoit and Wolf's shrunk one, as in `principal_directions`. For thousands
    of statistics this is ten times as fast, because it does not compute the directions one by one.
    """
    from scipy.linalg import solve_triangular

    covariance_FF = _shrunk_covariance(statistics_NF)
    identity_FF = np.eye(len(covariance_FF))
    root_FF = np.linalg.cholesky(covariance_FF + _floor(covariance_FF) * identity_FF)
    return torch.from_numpy(solve_triangular(root_FF, identity_FF, lower=True).T.copy()).float()


def _shrunk_covariance(statistics_NF: Floats) -> NDArray[np.float64]:
    from sklearn.covariance import ledoit_wolf  # takes long to import

    x_NF = statistics_NF.astype(np.float64)
    if not np.isfinite(x_NF).all():
        raise DataError("the layers' statistics of training images are not finite: lower the learning rate")
    if len(x_NF) < 2:
        return np.zeros((x_NF.shape[1],) * 2)
    covariance_FF: NDArray[np.float64] = ledoit_wolf(x_NF)[0]
    return covariance_FF


def _floor(covariance_FF: NDArray[np.float64]) -> float:
    """Return the least variance: with it, a change of a constant statistic is large, but finite."""
    return float(max(_SMALLEST * np.diag(covariance_FF).mean(), np.finfo(np.float32).tiny ** 0.5))
