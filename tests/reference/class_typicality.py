"""Loop transcription of the typicality of features, float64."""

import numpy as np
from sklearn.covariance import LedoitWolf


def class_typicality(train, labels, features):
    """The smallest Mahalanobis distance of each direction to the mean direction of a class."""
    train = np.array([row / np.linalg.norm(row) for row in train.astype(np.float64)])
    means = {k: train[labels == k].mean(axis=0) for k in set(labels.tolist())}
    residuals = np.array([row - means[k] for row, k in zip(train, labels.tolist(), strict=True)])
    precision = np.linalg.inv(LedoitWolf().fit(residuals).covariance_)
    found = []
    for row in features.astype(np.float64):
        row = row / np.linalg.norm(row)
        found.append(min(np.sqrt((row - mean) @ precision @ (row - mean)) for mean in means.values()))
    return np.array(found)
