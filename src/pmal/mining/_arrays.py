"""Arrays from anywhere become tensors, or an error that names the sample.

N samples, K classes, D channels, R numbers per point.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pmal.data.conversions import floats, whole_numbers
from pmal.errors import DataError, UsageError

Values = ArrayLike | Tensor
SpaceLike = tuple[Values, Values] | tuple[Values, Values, Values | None]


# No sum of a few logits below this overflows.
_LARGEST = 1e300


class Space(NamedTuple):
    """What one classifier makes of the samples, and its linear head."""

    z: Tensor
    """Embeddings (N, D)."""
    weight: Tensor
    """Class weights (K, D)."""
    bias: Tensor
    """Biases (K,); zeros for a head without."""


def check_spaces(spaces: Sequence[SpaceLike]) -> list[Space]:
    """Return the embeddings and heads as tensors, all of the same N samples and K classes."""
    if not spaces:
        raise UsageError("spaces: none given: pass at least one pair (embeddings, class weights)")
    checked = [_check_space(space, f"space {u}") for u, space in enumerate(spaces)]
    for u, space in enumerate(checked):
        for what, got, expected in (
            ("samples", len(space.z), len(checked[0].z)),
            ("classes", len(space.weight), len(checked[0].weight)),
        ):
            if got != expected:
                raise DataError(f"space {u}: {got} {what}, but space 0 has {expected}: they must be the same")
    return checked


def check_labels(labels: Values, count: int, num_classes: int) -> Tensor:
    """Return one class index in [0, num_classes) per sample, int64 on the CPU."""
    labels_N = integers(labels, "labels", count)
    outside = (labels_N < 0) | (labels_N >= num_classes)
    if outside.any():
        i = first(outside)
        raise DataError(
            f"sample {i}: label {int(labels_N[i])} is outside the head: its {num_classes} classes are "
            f"0 to {num_classes - 1}"
        )
    return labels_N


def check_ids(ids: Values | None, count: int) -> Tensor:
    """Return one number of its own per sample; without any, its position."""
    if ids is None:
        return torch.arange(count)
    ids_N = integers(ids, "ids", count)
    if (ids_N < 0).any():
        raise DataError(f"ids: sample {first(ids_N < 0)} has a negative one: they count from 0")
    sorted_N = ids_N.sort().values
    again = sorted_N[1:] == sorted_N[:-1]
    if again.any():
        raise DataError(f"ids: {int(sorted_N[first(again)])} occurs twice: every sample needs its own")
    return ids_N


def check_names(names: Sequence[str] | None, count: int, what: str) -> None:
    if names is not None and len(names) != count:
        raise DataError(f"{what}: {len(names)} names given, {count} needed, one for each")


def check_log_quality(log_quality: Values, what: str = "log_r") -> Tensor:
    """Return log qualities as float64 on the CPU.

    -inf (a quality of zero) is a number like any other; NaN and +inf are not.
    """
    log_N = floats(log_quality, what, 1).double().cpu()
    bad = log_N.isnan() | (log_N == torch.inf)
    if bad.any():
        i = first(bad)
        raise DataError(
            f"{what}: {log_N[i].item()} for sample {i}: remove the sample or repair its embedding"
        )
    return log_N


def check_points(points: Values, count: int) -> Tensor:
    """Return finite float64 coordinates, one row per sample, on the device they came from."""
    points_NR = floats(points, "points", 2).double()
    same_length(points_NR, count, "points")
    finite_rows(points_NR, "points")
    return points_NR


def check_count(value: int, option: str) -> None:
    if value < 1:
        raise UsageError(f"{option}={value}: must be at least 1")


def same_length(values: Tensor, count: int, what: str) -> None:
    if len(values) != count:
        raise DataError(f"{what}: {len(values)} rows for {count} samples: every sample needs exactly one")


def integers(values: Values, what: str, count: int) -> Tensor:
    """Return a vector of whole numbers as int64 on the CPU."""
    vector = torch.from_numpy(whole_numbers(values, what))
    same_length(vector, count, what)
    return vector


def finite_rows(matrix: Tensor, what: str) -> Tensor:
    """Return the largest magnitude of each row; NaN and infinity are an error."""
    low, high = matrix.aminmax(dim=1)
    largest_N = (-low).maximum(high).double()
    bad = ~largest_N.isfinite()
    if bad.any():
        raise DataError(
            f"{what}: sample {first(bad)} has NaN or infinite values ({int(bad.sum())} such samples): "
            "remove them or embed them again"
        )
    return largest_N


def first(mask: Tensor) -> int:
    return int(mask.nonzero()[0, 0])


def _check_space(space: SpaceLike, what: str) -> Space:
    if len(space) not in (2, 3):
        raise UsageError(f"{what}: expected (embeddings, weights) or (embeddings, weights, bias)")
    z_ND, W_KD = floats(space[0], f"{what}, embeddings", 2), floats(space[1], f"{what}, class weights", 2)
    bias = space[2] if len(space) == 3 else None
    b_K = W_KD.new_zeros(len(W_KD)) if bias is None else floats(bias, f"{what}, bias", 1)
    if z_ND.shape[1] != W_KD.shape[1]:
        raise DataError(
            f"{what}: embeddings have {z_ND.shape[1]} channels and class weights {W_KD.shape[1]}: "
            "weights are (classes, channels)"
        )
    if len(b_K) != len(W_KD):
        raise DataError(f"{what}: {len(b_K)} biases for {len(W_KD)} classes")
    if not (W_KD.isfinite().all() and b_K.isfinite().all()):
        raise DataError(f"{what}: the head has NaN or infinite weights")
    if not len(z_ND):
        raise DataError(f"{what}: no samples")
    logit_N = finite_rows(z_ND, f"{what}, embeddings") * float(W_KD.abs().max()) * W_KD.shape[1]
    if (logit_N > _LARGEST).any():
        raise DataError(f"{what}: the logits of sample {first(logit_N > _LARGEST)} overflow: scale it down")
    return Space(z_ND, W_KD.to(z_ND.device), b_K.to(z_ND.device))
