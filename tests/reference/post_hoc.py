"""Mahalanobis, ViM and ReAct as loops over images and classes, in float64."""

import math

import numpy as np


def mahalanobis(new, known, labels):
    """Squared distance to the nearest class mean, by the inverse of the pooled covariance."""
    classes = sorted(set(labels))
    means = {k: np.mean([z for z, y in zip(known, labels, strict=True) if y == k], axis=0) for k in classes}
    covariance = np.zeros((len(known[0]), len(known[0])))
    for z, y in zip(known, labels, strict=True):
        covariance += np.outer(z - means[y], z - means[y]) / len(known)
    inverse = np.linalg.inv(covariance)
    return [min(float((z - means[k]) @ inverse @ (z - means[k])) for k in classes) for z in new]


def vim(new, known, weight, bias, principal):
    """By the projector onto the residual space: the identity without the largest directions."""
    origin = np.linalg.lstsq(weight, -bias, rcond=None)[0]
    _, _, directions = np.linalg.svd(known - origin, full_matrices=True)
    projector = np.eye(known.shape[1]) - directions[:principal].T @ directions[:principal]

    def residual(z):
        return math.sqrt(sum(x * x for x in projector @ (z - origin)))

    largest = math.fsum(max(weight @ z + bias) for z in known) / len(known)
    alpha = largest / (math.fsum(residual(z) for z in known) / len(known))
    return [alpha * residual(z) + energy(weight @ z + bias) for z in new]


def react(new, known, weight, bias, share):
    """The limit is the linear interpolation between two of all sorted activations."""
    values = sorted(x for z in known for x in z)
    place = share * (len(values) - 1)
    low = math.floor(place)
    limit = values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])
    return [energy(weight @ np.array([min(x, limit) for x in z]) + bias) for z in new]


def energy(logits):
    return -math.log(math.fsum(math.exp(x) for x in logits))
