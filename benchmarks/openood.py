"""OpenOOD's formulas, written down from openood/postprocessors and openood/evaluators/metrics.py, in float64.

There each is a confidence; here its sign is turned, so that larger is more unknown.

B test images, N training images, D channels, K classes.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax
from scipy.stats import weibull_min
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import auc, precision_recall_curve, roc_curve

Floats = NDArray[np.float64]
TAIL, REVISED, SHIFT = 20, 3, 10_000
"""OpenMax: distances of a tail, activations that are revised, and by how much libmr moves a tail."""


def max_logit(logits_BK: Floats) -> Floats:
    return -logits_BK.max(axis=1)


def max_softmax(logits_BK: Floats) -> Floats:
    return -softmax(logits_BK, axis=1).max(axis=1)


def energy(logits_BK: Floats) -> Floats:
    return -logsumexp(logits_BK, axis=1)


def neighbors(z_BD: Floats, train_ND: Floats, k: int) -> Floats:
    """The squared Euclidean distance to the k-th nearest, of unit vectors with a small number added."""
    unit_BD, unit_ND = (z / np.linalg.norm(z, axis=1, keepdims=True) + 1e-10 for z in (z_BD, train_ND))
    found = [np.sort(((one - unit_ND) ** 2).sum(axis=1))[k - 1] for one in unit_BD]
    return np.array(found)


def mahalanobis(z_BD: Floats, train_ND: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """The squared distance to the nearest mean, by the covariance of all differences to them."""
    means_KD = np.array([train_ND[labels_N == k].mean(axis=0) for k in np.unique(labels_N)])
    precision_DD = EmpiricalCovariance().fit(train_ND - means_KD[labels_N]).precision_
    gaps = (z_BD - mean for mean in means_KD)
    return np.min([((gap @ precision_DD) * gap).sum(axis=1) for gap in gaps], axis=0)


def vim(z_BD: Floats, train_ND: Floats, weight_KD: Floats, bias_K: Floats, principal: int) -> Floats:
    origin_D = -np.linalg.pinv(weight_KD) @ bias_K
    covariance_DD = EmpiricalCovariance(assume_centered=True).fit(train_ND - origin_D).covariance_
    values_D, vectors_DD = np.linalg.eigh(covariance_DD)
    rest_DR = vectors_DD[:, np.argsort(-values_D)[principal:]]
    length_N = np.linalg.norm((train_ND - origin_D) @ rest_DR, axis=1)
    alpha = (train_ND @ weight_KD.T + bias_K).max(axis=1).mean() / length_N.mean()
    virtual_B = alpha * np.linalg.norm((z_BD - origin_D) @ rest_DR, axis=1)
    return virtual_B + energy(z_BD @ weight_KD.T + bias_K)


def react(z_BD: Floats, train_ND: Floats, weight_KD: Floats, bias_K: Floats, percentile: float) -> Floats:
    clipped_BD = z_BD.clip(max=np.percentile(train_ND.flatten(), percentile))
    return energy(clipped_BD @ weight_KD.T + bias_K)


def openmax(logits_BK: Floats, train_NK: Floats, labels_N: NDArray[np.int64]) -> Floats:
    """The share of the unknown class; tails are moved far from zero before they are fitted, as by libmr."""
    outside_BK = np.empty_like(logits_BK)
    for k in range(logits_BK.shape[1]):
        right_MK = train_NK[(labels_N == k) & (train_NK.argmax(axis=1) == k)]
        mean_K = right_MK.mean(axis=0)
        tail = np.sort(np.linalg.norm(right_MK - mean_K, axis=1))[-TAIL:]
        shape, _, scale = weibull_min.fit(tail + SHIFT - tail.min(), floc=0)
        moved_B = np.linalg.norm(logits_BK - mean_K, axis=1) + SHIFT - tail.min()
        outside_BK[:, k] = weibull_min.cdf(moved_B, shape, scale=scale)
    rank_BK = np.argsort(np.argsort(-logits_BK, axis=1), axis=1)
    part_BK = outside_BK * np.clip((REVISED - rank_BK) / REVISED, 0, None)
    unknown_B1 = (logits_BK * part_BK).sum(axis=1, keepdims=True)
    revised_BL = np.concatenate([unknown_B1, logits_BK * (1 - part_BK)], axis=1)
    return softmax(revised_BL, axis=1)[:, 0]


def metrics(confidence_B: Floats, known_B: NDArray[np.bool_]) -> dict[str, float]:
    """AUROC, both AUPRs by the trapezoidal rule, and FPR95.

    In FPR95 the unknown images are the positive ones, since its version 1.5; before, the known ones were.
    """
    false, true, _ = roc_curve(~known_B, -confidence_B)
    before_false, before_true, _ = roc_curve(known_B, confidence_B)
    precision_in, recall_in, _ = precision_recall_curve(known_B, confidence_B)
    precision_out, recall_out, _ = precision_recall_curve(~known_B, -confidence_B)
    return {
        "AUROC": float(auc(false, true)),
        "FPR95": float(false[np.argmax(true >= 0.95)]),
        "FPR95, roles changed": float(before_false[np.argmax(before_true >= 0.95)]),
        "AUPR, known": float(auc(recall_in, precision_in)),
        "AUPR, unknown": float(auc(recall_out, precision_out)),
    }
