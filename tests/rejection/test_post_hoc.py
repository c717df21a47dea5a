"""Scores of others: against loops, against another package, and which way round they are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.errors import UsageError
from pmal.rejection import post_hoc
from pmal.rejection.post_hoc import (
    fit_gaussians,
    fit_react,
    fit_vim,
    mahalanobis_score,
    principal_directions,
    react_score,
    vim_score,
)
from pmal.rejection.scores import energy_score, neighbor_score
from tests.reference import post_hoc as reference

K, D, PRINCIPAL = 3, 8, 4


def problem(seed=0, known=60, new=20):
    """Embeddings of classes in a few directions, others anywhere, and a layer that tells classes apart."""
    rng = np.random.default_rng(seed)
    labels = np.arange(known) % K
    means = 4 * np.eye(K, D)
    spread = np.diag(np.r_[np.full(K, 0.7), np.full(D - K, 0.2)])
    z = means[labels] + rng.normal(size=(known, D)) @ spread
    weight, bias = 2 * means + 0.1 * rng.normal(size=(K, D)), rng.normal(size=K)
    return z, labels, weight, bias, rng.normal(size=(new, D)) * 3


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def all_scores(z, labels, weight, bias, new, principal=PRINCIPAL):
    """Every score of new embeddings, by name."""
    return {
        "mahalanobis": mahalanobis_score(new, fit_gaussians(z, labels)),
        "vim": vim_score(new, new @ weight.T + bias, fit_vim(z, weight, bias, principal)),
        "react": react_score(new, fit_react(z), weight, bias),
    }


def test_scores_are_those_of_the_loops():
    z, labels, weight, bias, new = problem()
    expected = {
        "mahalanobis": reference.mahalanobis(new, z, labels.tolist()),
        "vim": reference.vim(new, z, weight, bias, PRINCIPAL),
        "react": reference.react(new, z, weight, bias, post_hoc.REACT_SHARE),
    }
    found = all_scores(*tensors(z, labels, weight, bias, new))
    for name, values in expected.items():
        assert found[name].dtype == torch.float64
        # The limit of ReAct is found among float32 activations.
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-5 if name == "react" else 1e-8)


def test_scores_are_those_of_pytorch_ood():
    """Up to the factor 1 / 2N of its Gaussians. It needs torchvision, and is no dependency of ours."""
    detector = pytest.importorskip(
        "pytorch_ood.detector", exc_type=ImportError, reason="pytorch-ood, or its torchvision, is not there"
    )
    z, labels, weight, bias, new = (t.float() if t.is_floating_point() else t for t in tensors(*problem()))
    found = all_scores(z, labels, weight, bias, new)
    gaussians = detector.Mahalanobis(None).fit_features(z, labels)
    vim = detector.ViM(None, PRINCIPAL, weight, bias).fit_features(z, labels)
    react = detector.ReAct(lambda x: x, lambda x: x @ weight.T + bias, threshold=fit_react(z))
    knn = detector.KNN(None, k=5).fit_features(z, labels)
    mahalanobis = 2 * len(z) * gaussians.predict_features(new)
    torch.testing.assert_close(mahalanobis.double(), found["mahalanobis"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(vim.predict_features(new).double(), found["vim"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(react.predict(new).double(), found["react"], rtol=1e-5, atol=1e-5)
    # The square of the Euclidean distance of unit vectors is twice the cosine distance.
    distance = torch.as_tensor(knn.predict_features(new)).double()
    torch.testing.assert_close(distance.square() / 2, neighbor_score(new, z, 5), rtol=1e-4, atol=1e-6)
    energy = detector.EnergyBased.score(new @ weight.T + bias)
    torch.testing.assert_close(energy.double(), energy_score(new @ weight.T + bias), rtol=1e-5, atol=1e-5)


def test_what_is_unlike_the_training_embeddings_scores_higher():
    """Fails where the sign of a score flips."""
    z, labels, weight, bias, _ = tensors(*problem())
    fresh, _, _, _, _ = tensors(*problem(seed=1))
    aside = torch.zeros(10, D, dtype=torch.float64)
    aside[:, K:] = 3.0
    known, unknown = (all_scores(z, labels, weight, bias, new) for new in (fresh, aside))
    for name, score in known.items():
        assert unknown[name].min() > score.max(), name


def test_clipping_changes_what_a_single_large_activation_says():
    """ReAct's point: by energy the spike is the best known of all, by ReAct it is no better than others."""
    z, _, weight, bias, _ = tensors(*problem())
    spike = torch.full((1, D), 0.01, dtype=torch.float64)
    spike[0, 0] = 1000.0
    assert energy_score(spike @ weight.T + bias) < energy_score(z @ weight.T + bias).min() - 100
    limit = fit_react(z)
    assert react_score(spike, limit, weight, bias) > react_score(z, limit, weight, bias).min()


@given(st.integers(0, 1000))
def test_mahalanobis_is_the_same_in_any_linear_coordinates(seed):
    z, labels, _, _, new = tensors(*problem(seed))
    rng = np.random.default_rng(seed)
    turn = torch.from_numpy(np.linalg.qr(rng.normal(size=(D, D)))[0] * rng.uniform(0.5, 2, D))
    shift = torch.from_numpy(rng.normal(size=D))
    plain = mahalanobis_score(new, fit_gaussians(z, labels))
    turned = mahalanobis_score(new @ turn + shift, fit_gaussians(z @ turn + shift, labels))
    torch.testing.assert_close(plain, turned, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@given(st.integers(0, 1000))
def test_vim_is_the_same_when_the_space_is_turned_and_react_when_channels_are_reordered(seed):
    z, labels, weight, bias, new = tensors(*problem(seed))
    rng = np.random.default_rng(seed)
    turn, order = torch.from_numpy(np.linalg.qr(rng.normal(size=(D, D)))[0]), rng.permutation(D)
    plain = all_scores(z, labels, weight, bias, new)
    turned = all_scores(z @ turn, labels, weight @ turn, bias, new @ turn)
    torch.testing.assert_close(plain["vim"], turned["vim"], rtol=1e-6, atol=1e-6)
    mixed = all_scores(z[:, order], labels, weight[:, order], bias, new[:, order])
    torch.testing.assert_close(plain["react"], mixed["react"])


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_scores_are_finite_and_their_order_of_samples_does_not_matter(seed, scale):
    z, labels, weight, bias, new = tensors(*problem(seed))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(z)))
    found = all_scores(z * scale, labels, weight, bias, new)
    again = all_scores(z[order] * scale, labels[order], weight, bias, new)
    for name, score in found.items():
        assert score.isfinite().all(), name
        torch.testing.assert_close(score, again[name], rtol=1e-5, atol=1e-5)


def test_react_without_a_limit_is_the_energy():
    _, _, weight, bias, new = tensors(*problem())
    torch.testing.assert_close(react_score(new, math.inf, weight, bias), energy_score(new @ weight.T + bias))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_embedding_that_broke_is_unknown(value):
    z, labels, weight, bias, new = tensors(*problem())
    new[3, 2] = value
    for name, score in all_scores(z, labels, weight, bias, new).items():
        assert score[3] == math.inf, name
        assert score.isfinite().sum() == len(new) - 1, name


def test_directions_and_classes_that_never_occur_are_left_out():
    """Dead channels, and a class of which no image was drawn."""
    z, labels, _, _, new = tensors(*problem())
    z[:, -2:] = 0.0
    found = mahalanobis_score(new, fit_gaussians(z, labels))
    smaller = mahalanobis_score(new[:, :-2], fit_gaussians(z[:, :-2], labels))
    torch.testing.assert_close(found, smaller)
    kept = labels != 1
    two = fit_gaussians(z[kept], labels[kept])
    assert two.means_KR.shape[0] == 2
    assert mahalanobis_score(new, two).isfinite().all()


def test_large_sets_are_taken_in_blocks(monkeypatch):
    z, labels, weight, bias, new = tensors(*problem())
    whole = all_scores(z, labels, weight, bias, new)
    monkeypatch.setattr(post_hoc, "_ROWS", 7)
    for name, score in all_scores(z, labels, weight, bias, new).items():
        torch.testing.assert_close(score, whole[name])
    monkeypatch.setattr(post_hoc, "_QUANTILE_NUMBERS", 5 * D)
    assert fit_react(z) == pytest.approx(np.quantile(z[[0, 15, 30, 44, 59]].float().numpy(), 0.9))


def test_principal_directions_are_fewer_than_channels():
    assert [principal_directions(n) for n in (2, 128, 512, 768, 1024, 2048)] == [1, 64, 256, 512, 512, 1000]
    z, _, weight, bias, _ = tensors(*problem())
    with pytest.raises(UsageError, match="8 channels, pass fewer"):
        fit_vim(z, weight, bias, D)
