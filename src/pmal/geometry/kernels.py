"""The interface of a pair kernel, and which kernel runs where.

Both spaces are given as coordinates y of shape (N, R), float64, centered, of unit RMS length; d_ij is the
Euclidean distance of rows i and j. All work on N x N pairs goes through the two functions of `Kernel`.
"""

import importlib.util
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from pmal.errors import UsageError

Advance = Callable[[int], None]
"""Called with the number of pairs that were just computed."""
Part = tuple[int, int]
"""(index, count): one of `count` parts of the pairs; the parts add up to all of them."""
WHOLE = (0, 1)


class PairSums(NamedTuple):
    """Sums over j for every sample i, float64, (N,)."""

    gap: Tensor
    """(d_a(i, j) - d_b(i, j))^2"""
    square_a: Tensor
    """d_a(i, j)^2, of the coordinates as rounded by the kernel"""
    square_b: Tensor


class Kernel(Protocol):
    """The interface of a kernel: a module with these functions."""

    def pair_sums(
        self, a_NR: Tensor, b_NR: Tensor, *, fast: bool, advance: Advance | None, part: Part = WHOLE
    ) -> PairSums:
        """Return the sums over all pairs, in about float32 accuracy; less if `fast` is faster that way.

        Given a part, `gap` sums over its pairs alone. The parts' gaps add up to the whole, as a rule to the
        same bits: the terms are float32 sums of a few pairs each, the same in every division, and float64
        adds them without rounding while none is below 2^-29 of the total (except zeros).
        """
        ...

    def squared_gaps(self, a_NR: Tensor, b_NR: Tensor, rows: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        """Return sum_j (alpha_i d_a(i, j) - beta_i d_b(i, j))^2 for the given rows i, all in float64."""
        ...


def square_sums(y_NR: Tensor) -> Tensor:
    """Return sum_j |y_i - y_j|^2 for every i, without visiting the pairs.

    Nothing cancels for centered y: both large terms are positive and the third is close to zero.

    >>> square_sums(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)).tolist()
    [10.0, 5.0, 13.0]
    """
    squares_N = y_NR.square().sum(1)
    return len(y_NR) * squares_N + squares_N.sum() - 2 * (y_NR @ y_NR.sum(0))


def kernel_for(device: torch.device) -> Kernel:
    """Return the fastest kernel that can run on the device.

    Raises:
        UsageError: no kernel runs on the device.
    """
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device '{device}' has no float64 kernel: use 'cpu' or 'cuda'")
    compiler, module = ("numba", "cpu_kernel") if device.type == "cpu" else ("triton", "cuda_kernel")
    available = importlib.util.find_spec(compiler) is not None
    return cast(Kernel, import_module(f"pmal.geometry.{module if available else 'torch_kernel'}"))
