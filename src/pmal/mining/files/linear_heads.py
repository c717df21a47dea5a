"""Linear heads for embeddings that came without one: a frozen foundation model's features are enough.

A head is multinomial logistic regression on standardized features, from its own start and on its own
bootstrap of the samples, so that two heads on the same features differ as two trainings would. Its weights
are given for the features as they are: standardization is folded into them.

N samples, B of a block, D channels, K classes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pmal._runtime.seeds import stream

L2 = 0.03
"""Weight of half the squared weights (of standardized features), against the mean loss of a sample.

Chosen by how well r of two heads finds damaged images: 5,000 of CIFAR-10, a tenth of them damaged, features
of one small network trained on TinyImageNet. AUROC 0.72 at 1e-4, 0.74 at 1e-3, 0.77 to 0.78 from 0.01 to 0.3.
"""
_ITERATIONS = 200
_TOLERANCE = 1e-6
"""L-BFGS ends where a step changes the loss by less."""
_HISTORY = 10
_START = 0.01
_ROUNDING, _SMALLEST = 1e-12, 1e-280
_BLOCK_NUMBERS = 1 << 22
_KEPT_NUMBERS = 1 << 29
"""Up to so many (2 GiB), standardized features are kept; beyond, they are made anew in every step."""

_Block = tuple[Tensor, Tensor]


class FittedHead(NamedTuple):
    """A head for the features as they are, float64 on their device."""

    weight: Tensor
    """Class weights (K, D)."""
    bias: Tensor
    """(K,)"""
    accuracy: float
    """Share of all samples, drawn or not, that the head puts into their class."""


class _Scaling(NamedTuple):
    """What makes features standard, float64: x = (z - mean) / deviation. Infinite where nothing varies."""

    mean_D: Tensor
    deviation_D: Tensor


def fit_head(z_ND: Tensor, labels_N: Tensor, num_classes: int, seed: int) -> FittedHead:
    """A linear head for embeddings of which every class has a sample; takes up to 2 GiB beside them.

    >>> z = torch.tensor([[0.0, 5.0], [1.0, 5.0], [9.0, 5.0], [10.0, 5.0]])
    >>> head = fit_head(z, torch.tensor([0, 0, 1, 1]), num_classes=2, seed=0)
    >>> (z.double() @ head.weight.T + head.bias).argmax(dim=1).tolist(), head.accuracy
    ([0, 0, 1, 1], 1.0)
    """
    labels_N = labels_N.to(z_ND.device)
    scaling = _standardize(z_ND)
    counts_N = stratified_bootstrap(labels_N, stream(seed, "bootstrap"))
    generator = torch.Generator().manual_seed(stream(seed, "start"))
    start_KC = _START * torch.randn(num_classes, z_ND.shape[1] + 1, generator=generator)
    theta_KC = _minimize(start_KC.to(z_ND.device), z_ND, labels_N, counts_N, scaling)

    hits = sum(
        int((x_BC @ theta_KC.T).argmax(dim=1).eq(labels_N[rows_B]).sum())
        for rows_B, x_BC in _Blocks(z_ND, torch.arange(len(z_ND), device=z_ND.device), scaling, num_classes)
    )
    weight_KD = theta_KC[:, :-1].double() / scaling.deviation_D
    bias_K = theta_KC[:, -1].double() - weight_KD @ scaling.mean_D
    return FittedHead(weight_KD, bias_K, hits / len(z_ND))


def stratified_bootstrap(labels_N: Tensor, seed: int) -> Tensor:
    """How often each sample is drawn, int64 (N,): from every class as many as it has, with replacement.

    >>> stratified_bootstrap(torch.tensor([0, 1, 1, 1]), seed=0).tolist()
    [1, 0, 1, 2]
    """
    order = labels_N.argsort(stable=True)
    sizes_K = torch.bincount(labels_N)
    ends_K = sizes_K.cumsum(0)
    uniform_N = torch.rand(
        len(labels_N), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(labels_N.device)
    sorted_labels = labels_N[order]
    size_N, start_N = sizes_K[sorted_labels], (ends_K - sizes_K)[sorted_labels]
    drawn = order[start_N + (uniform_N * size_N).long()]
    return torch.bincount(drawn, minlength=len(labels_N))


def _standardize(z_ND: Tensor) -> _Scaling:
    """Means and deviations over all samples, block by block."""
    height = max(1, _BLOCK_NUMBERS // z_ND.shape[1])
    blocks = [z_ND[start : start + height] for start in range(0, len(z_ND), height)]
    # Relative to the largest entry, so that squares of 1e200 stay finite.
    largest = max(float(block.abs().max()) for block in blocks) or 1.0
    mean_D, square_D = z_ND.new_zeros(2, z_ND.shape[1], dtype=torch.float64)
    for block in blocks:
        mean_D += (block.double() / largest).sum(0) / len(z_ND)
    for block in blocks:
        square_D += (block.double() / largest - mean_D).square().sum(0) / len(z_ND)
    deviation_D = square_D.sqrt() * largest
    # What rounding leaves of equal numbers is no feature.
    varies_D = deviation_D > (_ROUNDING * largest * mean_D.abs()).clamp(min=_SMALLEST)
    return _Scaling(mean_D * largest, torch.where(varies_D, deviation_D, torch.inf))


def _minimize(
    theta_KC: Tensor, z_ND: Tensor, labels_N: Tensor, counts_N: Tensor, scaling: _Scaling
) -> Tensor:
    """The weights and biases (last column) with the least loss over the drawn samples."""
    blocks: Iterable[_Block] = _Blocks(z_ND, counts_N.nonzero()[:, 0], scaling, len(theta_KC))
    if int((counts_N > 0).sum()) * z_ND.shape[1] <= _KEPT_NUMBERS:
        blocks = list(blocks)
    optimizer: torch.optim.Optimizer = torch.optim.LBFGS(
        [theta_KC],
        max_iter=_ITERATIONS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=_TOLERANCE,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        total, slope_KC = 0.0, torch.zeros_like(theta_KC)
        for rows_B, x_BC in blocks:
            share_B, own_B1 = counts_N[rows_B] / len(z_ND), labels_N[rows_B, None]
            log_BK = (x_BC @ theta_KC.T).log_softmax(dim=1)
            total -= float((log_BK.gather(1, own_B1)[:, 0] * share_B).sum(dtype=torch.float64))
            error_BK = log_BK.exp_().scatter_add_(1, own_B1, -torch.ones_like(log_BK[:, :1]))
            slope_KC += error_BK.mul_(share_B[:, None]).T @ x_BC
        slope_KC[:, :-1] += L2 * theta_KC[:, :-1]
        theta_KC.grad = slope_KC
        return total + L2 / 2 * float(theta_KC[:, :-1].square().sum(dtype=torch.float64))

    optimizer.step(loss)
    return theta_KC.detach()


class _Blocks:
    """Some rows, and their standardized features in float32 with a column of ones for the bias."""

    def __init__(self, z_ND: Tensor, rows: Tensor, scaling: _Scaling, num_classes: int) -> None:
        self.z_ND, self.rows, self.scaling = z_ND, rows, scaling
        self.height = max(1, _BLOCK_NUMBERS // max(z_ND.shape[1] + 1, num_classes))

    def __iter__(self) -> Iterator[_Block]:
        for start in range(0, len(self.rows), self.height):
            rows_B = self.rows[start : start + self.height]
            x_BC = torch.ones(len(rows_B), self.z_ND.shape[1] + 1, device=self.z_ND.device)
            x_BC[:, :-1] = (self.z_ND[rows_B].double() - self.scaling.mean_D) / self.scaling.deviation_D
            yield rows_B, x_BC
