import importlib.util
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pmal._runtime.signals import STOPPING, raise_on_signals
from pmal.errors import Interrupted
from pmal.reporting.page.numbers.tsne_layout import _turned, layout_method, layouts


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


@pytest.mark.parametrize("mirrored", [1, -1])
def test_a_picture_is_turned_by_any_angle(mirrored):
    flat = np.random.default_rng(0).normal(size=(20, 2)) * [3, 1]
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]]) * [1, mirrored]
    np.testing.assert_allclose(_turned(flat @ turn, flat), flat, atol=1e-9)


def test_one_dimension_is_a_line():
    [flat] = layouts([np.array([[1.0], [-1.0], [2.0]])], "PCA")
    np.testing.assert_allclose(np.abs(flat[:, 0]) > 0.1, True)
    assert (flat[:, 1] == 0).all()


def test_infinite_numbers_leave_the_others_where_they_are():
    _, z = clusters()
    z[0, 0], z[1, 1] = np.inf, -np.inf
    [flat] = layouts([z], "PCA")
    [without] = layouts([np.where(np.isfinite(z), z, 0.0)], "PCA")
    np.testing.assert_allclose(flat, without)


def test_signals_wait_for_opentsne_and_its_picture_is_always_the_same(monkeypatch):
    done = []

    class Fake:
        def __init__(self, **words):
            done.append((words["random_state"], words["n_jobs"]))

        def fit(self, z):
            signal.raise_signal(signal.SIGINT)
            done.append("drawn")
            return z[:, :2]

    before = {number: signal.getsignal(number) for number in STOPPING}
    monkeypatch.setitem(sys.modules, "openTSNE", SimpleNamespace(TSNE=Fake))
    try:
        raise_on_signals("nothing was written")
        with pytest.raises(Interrupted):
            layouts([clusters()[1]], "t-SNE")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert done == [(0, 1), "drawn"]


def test_few_broken_or_flat_embeddings_are_drawn_nevertheless():
    for z in (np.zeros((5, 4)), np.full((9, 3), np.nan), np.ones((1, 1)), np.ones((3, 1))):
        for method in ("PCA", layout_method()):
            [flat] = layouts([z], method)
            assert flat.shape == (len(z), 2)
            assert np.isfinite(flat).all()


def test_without_opentsne_principal_components_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert layout_method() == "PCA"
