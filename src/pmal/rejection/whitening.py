"""What whitens statistics: after it, training samples differ by a variance of one in every direction.

N training samples, F statistics.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.errors import DataError

_SMALLEST = 1e-12
"""Share of the mean variance below which a direction counts as constant."""


def principal_directions(
    statistics_NF: NDArray[np.float32], most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean, and the directions in which samples differ most, scaled to a variance of one.

    By Ledoit and Wolf's shrunk covariance. With all directions, the length of a difference to the mean in
    them is its Mahalanobis distance.
    """
    from sklearn.covariance import ledoit_wolf  # takes long to import

    x_NF = statistics_NF.astype(np.float64)
    if not np.isfinite(x_NF).all():
        raise DataError("the layers' statistics of training images are not finite: lower the learning rate")
    covariance_FF = ledoit_wolf(x_NF)[0] if len(x_NF) > 1 else np.zeros((x_NF.shape[1],) * 2)
    values_F, vectors_FF = np.linalg.eigh(covariance_FF)  # in rising order
    # Constant statistics, as of a single image, would divide by zero: any change of them counts as large.
    floor = max(_SMALLEST * values_F.mean(), np.finfo(np.float32).tiny ** 0.5)
    directions_FF = vectors_FF / np.sqrt(values_F.clip(min=floor))
    kept = directions_FF if most is None else directions_FF[:, -most:]
    return torch.from_numpy(x_NF.mean(axis=0)).float(), torch.from_numpy(kept.copy()).float()
