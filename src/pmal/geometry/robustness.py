"""Embedding topology robustness: whether a sample keeps its position among the others in independent spaces.

N samples, U spaces, P = U (U - 1) / 2 pairs of spaces.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmal._runtime.devices import choose_device
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.config import TEMPERATURES
from pmal.errors import DataError, UsageError, unknown_name
from pmal.geometry.kernels import kernel_for
from pmal.geometry.landmarks import draw_landmarks, landmark_gap
from pmal.geometry.logits import Array, check_shapes, space_of
from pmal.geometry.topology import TOPOLOGIES, topology_gap

PRECISIONS = ("exact", "fast")
Report = Callable[[int], None]


class TopologyDistance(NamedTuple):
    """How differently two spaces place each sample, float64 (N,) on the CPU."""

    x: Tensor
    standard_error: Tensor
    """Zero without landmarks."""


def topology_robustness(
    spaces: Sequence[tuple[Array, Array]],
    *,
    topology: str = "unit",
    temperature: str | float = "median",
    precision: str = "exact",
    landmarks: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    report: Report | None = None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """Return log r of every sample, r = exp(-x / temperature): float64 (N,) on the CPU, at most 0.

    Args:
        spaces: U >= 2 pairs (embeddings (N, D_u), class weights (K, D_u)). With more than two, r is the mean
            over all pairs of spaces.
        topology: how the vectors t_1, t_2 of a sample's distances to all samples are compared. `unit`: x is
            the distance of the two at unit length; `rms`: |t_1 - t_2| / sqrt(N); `literal`: |t_1 - t_2|, as
            in the paper.
        temperature: a positive number; `median` divides x by its median over the samples, for each pair of
            spaces. A median of zero (the spaces are the same) gives r = 1 for every sample, and a warning.
        precision: `exact` computes x to 1e-5 of its value; `fast` gives up digits if that saves time.
        landmarks: estimate from the distances to this many random samples instead of to all;
            `topology_distance` gives the standard error.
        seed: draws the landmarks.
        device: where to compute; by default, the device of embeddings on a GPU, else a GPU if there is one.
        report: called with the number of sample pairs just computed, out of N x N (N x landmarks) per pair
            of spaces.
        ranks: the processes that share the pairs; all of them call this function with the same spaces.

    Returns:
        log r, float64 (N,) on the CPU; 0 is best.

    Raises:
        UsageError: an option or a shape is wrong.
        DataError: a number is not finite, or there is only one sample.

    >>> z, moved, head = 3 * torch.eye(4), 3 * torch.eye(4), torch.eye(4)
    >>> moved[2, 1] = 2.0  # sample 2 comes closer to sample 1
    >>> topology_robustness([(z, head), (moved, head)]).exp().round(decimals=2)
    tensor([0.6800, 0.2000, 0.1500, 0.6800], dtype=torch.float64)
    """
    check_temperature(temperature)
    distances = _distances(spaces, topology, precision, landmarks, seed, device, report, ranks)
    log_r_PN = torch.empty(len(distances), len(distances[0].x), dtype=torch.float64)
    for pair, found in enumerate(distances):
        log_r_PN[pair] = _log_robustness(found.x, temperature)
    return log_r_PN.logsumexp(0) - math.log(len(log_r_PN))


def check_temperature(temperature: str | float) -> None:
    """Reject a temperature that is neither `median` nor a number that log r = -x / temperature allows."""
    number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if temperature != "median" and not (number and TEMPERATURES.allows(float(temperature))):
        raise UsageError(f"temperature={temperature!r}: use 'median' or a number: {TEMPERATURES}")


def topology_distance(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    *,
    topology: str = "unit",
    precision: str = "exact",
    landmarks: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    report: Report | None = None,
) -> TopologyDistance:
    """Return x of two spaces and its standard error if landmarks are used.

    The options are those of `topology_robustness`.

    >>> z, head = torch.eye(3), torch.eye(3)
    >>> grown = topology_distance((z, head), (2 * z, head), topology="literal")
    >>> grown.x.round(decimals=6)  # each sample has two distances of sqrt(2), then of 2 sqrt(2)
    tensor([2., 2., 2.], dtype=torch.float64)
    """
    return _distances([first, second], topology, precision, landmarks, seed, device, report)[0]


def _distances(
    spaces: Sequence[tuple[Array, Array]],
    topology: str,
    precision: str,
    landmarks: int | None,
    seed: int,
    device: str | torch.device | None,
    report: Report | None,
    ranks: Ranks = ALONE,
) -> list[TopologyDistance]:
    """Return x for each of the P pairs of spaces."""
    for kind, name, valid in (("topology", topology, TOPOLOGIES), ("precision", precision, PRECISIONS)):
        if name not in valid:
            raise unknown_name(kind, str(name), valid)
    checked = _check(spaces)
    where = _device_of(checked[0][0], device)
    kernel, marks = kernel_for(where), _landmarks(len(checked[0][0]), landmarks, seed)
    prepared = [space_of(z, W, where, f"space {u}: ") for u, (z, W) in enumerate(checked)]
    report = ranks.for_all(report) if report else None
    distances = []
    for a, b in combinations(prepared, 2):
        if marks is None:
            x_N = topology_gap(a, b, topology, kernel, fast=precision == "fast", advance=report, ranks=ranks)
            found = x_N, torch.zeros_like(x_N)
        else:
            found = landmark_gap(a, b, topology, marks, report, ranks)
        distances.append(TopologyDistance(*(values.cpu() for values in found)))
    return distances


def _check(spaces: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """Return the spaces if they embed the same samples."""
    if len(spaces) < 2:
        raise UsageError(f"spaces={len(spaces)}: a topology is compared between two spaces or more")
    if any(not isinstance(space, Sequence) or len(space) != 2 for space in spaces):
        raise UsageError("spaces: each must be a pair (embeddings (N, D), class weights (K, D))")
    checked = [check_shapes(z, W, f"space {u}: ") for u, (z, W) in enumerate(spaces)]
    samples, classes = [len(z) for z, _ in checked], [len(W) for _, W in checked]
    if len(set(samples)) > 1:
        raise UsageError(f"spaces hold {samples} samples: all must embed the same samples, in the same order")
    if len(set(classes)) > 1:
        raise UsageError(f"spaces have {classes} classes: their heads must be trained on the same classes")
    if samples[0] < 2:
        raise DataError("spaces hold 1 sample: a topology needs 2 or more")
    return checked


def _device_of(embeddings: Array, device: str | torch.device | None) -> torch.device:
    if device is None and isinstance(embeddings, Tensor) and embeddings.is_cuda:
        return embeddings.device
    return choose_device("auto" if device is None else str(device))


def _landmarks(n: int, count: int | None, seed: int) -> Tensor | None:
    """Return the indices of the landmarks, or None if all samples are used."""
    if count is not None and (not isinstance(count, Integral) or count < 2):
        raise UsageError(f"landmarks={count!r}: use a whole number of 2 or more, or None for all samples")
    return None if count is None or count >= n else draw_landmarks(n, int(count), seed)


def _log_robustness(x_N: Tensor, temperature: str | float) -> Tensor:
    tau = float(np.median(x_N.numpy())) if isinstance(temperature, str) else float(temperature)
    if tau == 0:
        warnings.warn(
            "two spaces have the same topology (or one holds identical samples): r = 1 for every sample",
            stacklevel=3,
        )
        return torch.zeros_like(x_N)
    return -x_N / tau
