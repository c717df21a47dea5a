import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pmal.geometry.robustness import topology_robustness
from pmal.mining.files import linear_heads as heads
from pmal.mining.files.linear_heads import fit_head, stratified_bootstrap


def _blobs(samples=400, classes=4, channels=6, spread=1.2, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % classes)
    centers = rng.normal(size=(classes, channels)) * 1.5
    z = centers[labels] + spread * rng.normal(size=(samples, channels))
    return torch.from_numpy(z).float(), torch.from_numpy(labels)


def _logits(z, head):
    """Centered over the classes: what every softmax and every distance sees."""
    logits = z.double() @ head.weight.T + head.bias
    return logits - logits.mean(dim=1, keepdim=True)


def test_is_logistic_regression_on_the_bootstrap():
    z, labels = _blobs()
    z = z * torch.tensor([1.0, 100.0, 0.01, 1.0, 5.0, 1.0]) + torch.tensor([0.0, 300.0, 0.0, -7.0, 50.0, 1.0])
    head = fit_head(z, labels, 4, seed=3)
    counts = stratified_bootstrap(labels, heads.stream(3, "bootstrap")).numpy()
    scaler = StandardScaler().fit(z.double().numpy())
    reference = LogisticRegression(C=1 / (heads.L2 * len(z)), tol=1e-10, max_iter=5000)
    reference.fit(scaler.transform(z.double().numpy()), labels.numpy(), sample_weight=counts)
    expected = torch.from_numpy(reference.decision_function(scaler.transform(z.double().numpy())))
    expected -= expected.mean(dim=1, keepdim=True)
    found = _logits(z, head)
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()
    share = (found.argmax(dim=1) == labels).double().mean()
    assert head.accuracy == pytest.approx(float(share), abs=1e-9)
    assert 0.6 < head.accuracy < 0.99, "too easy or too hard to tell a good fit from a bad one"


def test_the_scale_of_a_feature_does_not_matter():
    z, labels = _blobs()
    plain = _logits(z, fit_head(z, labels, 4, seed=0))
    for scale, shift in ((1e20, 0.0), (1e-20, 0.0), (2.0**40, 0.0), (1.0, 1000.0)):
        moved = z * scale + shift
        found = _logits(moved, fit_head(moved, labels, 4, seed=0))
        assert (found - plain).abs().max() < 0.01 * plain.abs().max(), (scale, shift)
    huge = z.double() * 1e200
    found = _logits(huge, fit_head(huge, labels, 4, seed=0))
    assert (found - plain).abs().max() < 0.01 * plain.abs().max()


def test_features_that_never_vary_get_no_weight():
    z, labels = _blobs()
    fixed = torch.cat([z, torch.full((len(z), 1), 0.1), torch.full((len(z), 1), 1e20)], dim=1)
    head = fit_head(fixed, labels, 4, seed=0)
    assert (head.weight[:, 6:] == 0).all()
    assert torch.equal(head.weight[:, :6].isfinite(), torch.ones(4, 6, dtype=torch.bool))
    plain = _logits(z, fit_head(z, labels, 4, seed=0))
    assert (_logits(fixed, head) - plain).abs().max() < 0.02 * plain.abs().max()


def test_identical_samples_leave_a_head_of_zeros():
    head = fit_head(torch.full((6, 3), 2.5), torch.tensor([0, 1, 2, 0, 1, 2]), 3, seed=0)
    assert (head.weight == 0).all()
    assert head.bias.isfinite().all()


def test_depends_on_the_seed_and_on_nothing_else():
    z, labels = _blobs()
    before = z.clone()
    torch.manual_seed(1)
    first = fit_head(z, labels, 4, seed=0)
    torch.manual_seed(2)
    again = fit_head(z, labels, 4, seed=0)
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.bias, again.bias)
    assert torch.equal(z, before)
    other = _logits(z, fit_head(z, labels, 4, seed=1))
    assert (other - _logits(z, first)).abs().max() > 0.02 * other.abs().max()


def test_a_class_of_one_sample_is_learned():
    z, labels = _blobs(spread=0.2)
    z = torch.cat([z, torch.full((1, 6), 9.0)])
    head = fit_head(z, torch.cat([labels, torch.tensor([4])]), 5, seed=0)
    assert _logits(z, head)[-1].argmax() == 4


def test_two_heads_find_damaged_samples():
    """Features that say nothing of the class hang on the details of a head; the others do not."""
    z, labels = _blobs(samples=600, classes=8, channels=32)
    rng = np.random.default_rng(1)
    damaged = torch.from_numpy(rng.random(600) < 0.1)
    z[damaged] = 1.9 * torch.from_numpy(rng.normal(size=(600, 32))).float()[damaged]
    pair = [fit_head(z, labels, 8, seed) for seed in (0, 1)]
    log_r = topology_robustness([(z, head.weight) for head in pair])
    clean, bad = log_r[~damaged], log_r[damaged]
    assert float((clean[:, None] > bad[None, :]).double().mean()) > 0.8


# -- the bootstrap


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(0, 5))
def test_every_class_is_drawn_as_often_as_it_is_there(labels, seed):
    labels = torch.tensor(labels)
    counts = stratified_bootstrap(labels, seed)
    assert counts.shape == labels.shape
    assert (counts >= 0).all()
    drawn = torch.zeros(7).long().index_add(0, labels, counts)
    assert torch.equal(drawn, torch.bincount(labels, minlength=7))


def test_samples_are_drawn_with_replacement():
    labels = torch.arange(20_000) % 3
    counts = stratified_bootstrap(labels, seed=0)
    for times, share in ((0, 0.3679), (1, 0.3679), (2, 0.1839), (3, 0.0613)):
        assert float((counts == times).double().mean()) == pytest.approx(share, abs=0.01)
    assert not torch.equal(counts, stratified_bootstrap(labels, seed=1))
