import importlib.util

import numpy as np
import pytest

from pmal.reporting.report_data_embedding import layout_method, layouts


def clusters(count=60, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return labels, np.eye(8)[labels] * 5 + random.normal(size=(count, 8)) * 0.3


@pytest.mark.parametrize("method", ["PCA", "t-SNE"])
def test_classes_that_lie_apart_are_drawn_apart(method):
    if method == "t-SNE":
        pytest.importorskip("openTSNE", reason="openTSNE is not installed")
    labels, z = clusters()
    [flat] = layouts([z], method)
    assert flat.shape == (60, 2)
    assert np.abs(flat).max() == pytest.approx(1)
    distance = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (labels[distance.argmin(axis=1)] == labels).all()


def test_the_second_picture_is_turned_to_the_first():
    _, z = clusters()
    mirrored = z.copy()
    mirrored[:, [0, 1]] = mirrored[:, [1, 0]]  # an axis swap: principal components may come out mirrored
    first, second = layouts([z, -mirrored], "PCA")
    assert np.abs(first - second).max() < 1e-6


def test_few_broken_or_flat_embeddings_are_drawn_nevertheless():
    for z in (np.zeros((5, 4)), np.full((9, 3), np.nan), np.ones((1, 1)), np.ones((3, 1))):
        for method in ("PCA", layout_method()):
            [flat] = layouts([z], method)
            assert flat.shape == (len(z), 2)
            assert np.isfinite(flat).all()


def test_without_opentsne_principal_components_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert layout_method() == "PCA"
