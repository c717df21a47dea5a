"""Linear heads for embeddings that came without one: a frozen foundation model's features are enough.

A head is scikit-learn's logistic regression on standardized features and its own bootstrap of the samples, so
that two heads on the same features differ as two trainings would. Its weights are those for the features as
they are: standardization is folded into them.

N samples, D channels, K classes.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmal._runtime.seeds import stream

L2 = 0.03
"""Weight of half the squared weights (of standardized features), against the mean loss of a sample.

Chosen by how well r of two heads finds damaged images: 5,000 of CIFAR-10, a tenth of them damaged, features
of one small network trained on TinyImageNet. AUROC 0.72 at 1e-4, 0.74 at 1e-3, 0.77 to 0.78 from 0.01 to 0.3.
"""
_ITERATIONS = 1000


class FittedHead(NamedTuple):
    """A head for the features as they are, float64 on their device."""

    weight: Tensor
    """Class weights (K, D)."""
    bias: Tensor
    """(K,)"""
    accuracy: float
    """Share of all samples, drawn or not, that the head puts into their class."""


def fit_head(z_ND: Tensor, labels_N: Tensor, num_classes: int, seed: int) -> FittedHead:
    """Return a linear head for embeddings of which every class has a sample; takes as much memory again.

    >>> z = torch.tensor([[0.0, 5.0], [1.0, 5.0], [9.0, 5.0], [10.0, 5.0]])
    >>> head = fit_head(z, torch.tensor([0, 0, 1, 1]), num_classes=2, seed=0)
    >>> (z.double() @ head.weight.T + head.bias).argmax(dim=1).tolist(), head.accuracy
    ([0, 0, 1, 1], 1.0)
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler

    # By the largest first: squares of 1e200 are not finite, and equal numbers become exactly equal.
    largest, scaler = MaxAbsScaler(), StandardScaler(copy=False)
    x_ND = scaler.fit_transform(largest.fit_transform(z_ND.cpu().numpy()))
    labels = labels_N.cpu().numpy()
    counts = stratified_bootstrap(labels_N.cpu(), stream(seed, "bootstrap")).numpy()
    drawn = counts.nonzero()[0]
    # The two heads of two classes are each other's negative: one is fitted, of twice the weights.
    strength = L2 / 2 if num_classes == 2 else L2
    model = LogisticRegression(C=1 / (strength * len(z_ND)), max_iter=_ITERATIONS)
    model.fit(x_ND[drawn], labels[drawn], sample_weight=counts[drawn])
    accuracy = float((model.predict(x_ND) == labels).mean())
    coef, intercept = model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
    if num_classes == 2:
        coef, intercept = np.concatenate([-coef, coef]) / 2, np.concatenate([-intercept, intercept]) / 2
    weight = coef / scaler.scale_ / largest.scale_
    bias = intercept - (coef / scaler.scale_) @ scaler.mean_
    return FittedHead(
        torch.from_numpy(weight).to(z_ND.device), torch.from_numpy(bias).to(z_ND.device), accuracy
    )


def stratified_bootstrap(labels_N: Tensor, seed: int) -> Tensor:
    """Return how often each sample is drawn, int64 (N,).

    From every class as many are drawn as it has, with replacement.

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
