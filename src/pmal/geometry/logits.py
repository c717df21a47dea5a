"""The centered logits: coordinates in which the paper's Mahalanobis distance is the Euclidean one.

d_M has A A^T as its precision, where A is the class weights less their mean, so that
d_M(z_i, z_j) = |(z_i - z_j) A|: bias and the mean over classes drop out.

N samples, D channels, K classes, R = min(D, K - 1).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.errors import DataError, UsageError

Array = Tensor | NDArray[np.generic]

_BLOCK_NUMBERS = 1 << 24
_EPS = torch.finfo(torch.float64).eps
_LARGEST = 1e290
"""Largest scale, so that a sum of any number of distances stays finite."""


@dataclass(frozen=True)
class Space:
    """The samples in one model's space: d_M(i, j) = scale * |y_i - y_j|."""

    y_NR: Tensor
    """Float64, centered, of unit RMS length; all zeros if the samples cannot be told apart."""
    scale: float


def centered_logits(embeddings: Array, class_weights: Array) -> Tensor:
    """Return the logits z (W - mean W)^T in an orthonormal basis of the subspace they span: float64 (N, R).

    Their Euclidean distances are d_M. The basis is a smaller one: K logits that sum to zero need only K - 1
    numbers, and D channels only D.

    Args:
        embeddings: z, (N, D).
        class_weights: W, (K, D).

    Raises:
        UsageError: the shapes do not fit together.
        DataError: a number is not finite.

    >>> y_NR = centered_logits(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> y_NR.shape, round(float((y_NR[0] - y_NR[1]).norm() ** 2), 6)
    (torch.Size([2, 1]), 24.5)
    """
    z_ND, W_KD = check_shapes(embeddings, class_weights, "")
    device = z_ND.device if isinstance(z_ND, Tensor) else torch.device("cpu")
    y_NR, scale, _ = _scaled_logits(z_ND, W_KD, device, "")
    return y_NR.mul_(scale)


def space_of(z_ND: Array, W_KD: Array, device: torch.device, name: str) -> Space:
    """Return centered and scaled coordinates on a device; `name` is the space's name in error messages."""
    y_NR, scale, rounding = _scaled_logits(z_ND, W_KD, device, name)
    y_NR -= y_NR.mean(0)
    length = float(y_NR.square().sum(1).mean().sqrt())
    # If no class tells the samples apart, only rounding errors are left: they must not count as a topology.
    if length <= rounding:
        return Space(y_NR.zero_(), 0.0)
    return Space(y_NR.div_(length), scale * length)


def _scaled_logits(z_ND: Array, W_KD: Array, device: torch.device, name: str) -> tuple[Tensor, float, float]:
    """Return y, a factor such that factor * y are the logits, and how much of y may be rounding.

    y can be squared safely whatever the input's size.
    """
    largest = _largest_entry(z_ND, f"{name}embeddings: sample")
    weight_scale = _largest_entry(W_KD, f"{name}class weights: class")
    scaled_KD = torch.cat([block for _, block in _double_blocks(W_KD, device)]) / (weight_scale or 1.0)
    factor_DR = _logit_factor(scaled_KD)
    y_NR = torch.empty(len(z_ND), factor_DR.shape[1], dtype=torch.float64, device=device)
    squares = 0.0
    for start, z_BD in _double_blocks(z_ND, device):
        scaled_BD = z_BD / (largest or 1.0)
        y_NR[start : start + len(z_BD)] = scaled_BD @ factor_DR
        squares += float(scaled_BD.square().sum())
    rounding = 64 * _EPS * math.sqrt(squares / len(z_ND)) * float(scaled_KD.norm())
    return y_NR, min(largest * weight_scale, _LARGEST), rounding


def _logit_factor(W_KD: Tensor) -> Tensor:
    """Return a matrix (D, R) with the same products as the centered weights, R = min(D, K - 1).

    Only reflections are used, which keep every digit: a Cholesky factor of A A^T would square the condition
    number, and singular values of 1000 classes take longer than all pairs of 10^5 samples on a GPU.
    """
    k = len(W_KD)
    # The reflection of (1, ..., 1) to the first axis centers the rows and drops the empty dimension.
    normal_K = torch.full((k,), k**-0.5, dtype=W_KD.dtype, device=W_KD.device)
    normal_K[0] += 1.0
    normal_K /= normal_K.norm()
    centered_KD = W_KD - W_KD.mean(0)
    rows_RD = (centered_KD - 2 * torch.outer(normal_K, normal_K @ centered_KD))[1:]
    if len(rows_RD) > rows_RD.shape[1]:
        rows_RD = torch.linalg.qr(rows_RD, mode="r").R
    return rows_RD.T.contiguous()


def _largest_entry(matrix: Array, name: str) -> float:
    """Return the largest magnitude, or raise `DataError` naming the first row with a non-finite number."""
    largest = 0.0
    for start, block in _double_blocks(matrix, None):
        top = float(block.abs().amax())
        if not math.isfinite(top):
            row = int((~block.isfinite()).any(1).nonzero()[0])
            raise DataError(f"{name} {start + row} holds a NaN or an infinite number: leave it out or fix it")
        largest = max(largest, top)
    return largest


def _double_blocks(matrix: Array, device: torch.device | None) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows in float64, with their first row: a float64 copy of all rows may not fit."""
    height = max(1, _BLOCK_NUMBERS // matrix.shape[1])
    for start in range(0, len(matrix), height):
        rows = matrix[start : start + height]
        if isinstance(rows, Tensor):
            block = rows.detach() if rows.is_cuda else rows.detach().cpu()
        else:  # a copy, because torch warns about read-only arrays (a memory-mapped file)
            block = torch.from_numpy(np.array(rows, dtype=np.float64))
        yield start, block.to(device=device, dtype=torch.float64)


def check_shapes(embeddings: Array, class_weights: Array, name: str) -> tuple[Array, Array]:
    """Return both as arrays if their shapes fit together; `name` is the space's name in error messages."""
    z_ND, W_KD = _matrix(embeddings, f"{name}embeddings"), _matrix(class_weights, f"{name}class weights")
    if z_ND.shape[1] != W_KD.shape[1]:
        raise UsageError(
            f"{name}embeddings have {z_ND.shape[1]} channels but class weights {W_KD.shape[1]}: "
            "pass the weights of the head that reads these embeddings, (K, D)"
        )
    if len(W_KD) < 2:
        raise UsageError(
            f"{name}class weights hold 1 class: its distances are all zero, pass two classes or more"
        )
    return z_ND, W_KD


def _matrix(array: Array, name: str) -> Array:
    matrix = array if isinstance(array, Tensor) else np.asarray(array)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UsageError(f"{name} have shape {tuple(matrix.shape)}: a matrix with rows and columns is needed")
    real = not matrix.is_complex() if isinstance(matrix, Tensor) else matrix.dtype.kind in "fiub"
    if not real:
        raise UsageError(f"{name} hold {matrix.dtype}: real numbers are needed")
    return matrix
