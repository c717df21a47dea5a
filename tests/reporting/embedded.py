"""Samples with the embeddings of two classifiers."""

import numpy as np
import torch

from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.embeddings import EmbeddedSet


def embedded_samples(count=30, same=False):
    """Samples, and what two classifiers make of them: `same` if they do not differ."""
    random = np.random.default_rng(0)
    labels, ids = np.arange(count) % 3, np.arange(count) * 2
    store = ArrayStore("birds", np.zeros((2 * count, 8, 8, 1), np.uint8))
    spaces = []
    for _ in range(2):
        z, weight = random.normal(size=(count, 5)), random.normal(size=(3, 5))
        parts = (torch.from_numpy(part) for part in (z + 2 * weight[labels], weight, np.zeros(3)))
        spaces.append(EmbeddedSet(*parts, fresh=False))
    samples = Samples(store, ids, labels, ("owl", "tit", "wren"))
    return samples, [spaces[0]] * 2 if same else spaces
