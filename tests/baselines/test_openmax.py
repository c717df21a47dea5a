"""OpenMax: its equations, its Weibull fit, and clusters where the right answer is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import weibull_min

from pmal import OpenSetClassifier, auroc
from pmal.baselines.openmax import (
    STEEPEST,
    OpenMaxHead,
    fit_tails,
    fit_weibull,
    mean_activations,
    unknown_probability,
)
from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from pmal.errors import UsageError
from tests.reference import openmax as reference

CENTERS = np.array([[6.0, 0.0], [-3.0, 5.0], [-3.0, -5.0]])


def clusters(*counts, seed=0):
    """Points around the three centers, and their classes."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), counts)
    return CENTERS[labels] + random.normal(0, 0.7, (len(labels), 2)), labels


def classifier(**options):
    return OpenSetClassifier(
        method="openmax", encoder="precomputed", random_state=0, device="cpu", settings=options
    )


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.3, 60), st.floats(1e-6, 1e6), st.integers(3, 60))
def test_the_fit_is_at_least_as_likely_as_scipys(seed, shape, scale, count):
    values = weibull_min.rvs(shape, scale=scale, size=count, random_state=seed % 2**31)
    found = fit_weibull(values)
    theirs, _, their_scale = weibull_min.fit(values, floc=0)

    def likelihood(shape, scale):
        return weibull_min.logpdf(values, shape, scale=scale).sum()

    assert likelihood(*found) >= likelihood(theirs, their_scale) - 1e-6
    for factor in (0.99, 1.01):
        assert likelihood(found[0] * factor, found[1]) < likelihood(*found)
        assert likelihood(found[0], found[1] * factor) < likelihood(*found)


def test_the_fit_finds_the_distribution_of_many_values():
    values = weibull_min.rvs(3.5, scale=40.0, size=200_000, random_state=0)
    assert fit_weibull(values) == pytest.approx((3.5, 40.0), rel=0.01)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0, 2.0], [0.0, 2.0]])
def test_equal_values_have_the_steepest_distribution(values):
    shape, scale = fit_weibull(np.array(values))
    assert shape == STEEPEST
    assert scale == pytest.approx(2.0)


@pytest.mark.parametrize("distances", [[[0.0], [0.0]], [[], [0.0] * 30]])
def test_without_any_distance_everything_but_the_mean_is_far(distances):
    weibull = torch.from_numpy(fit_tails([np.array(values) for values in distances], 20))
    means_KK = torch.tensor([[3.0, -3.0], [-3.0, 3.0]], dtype=torch.float64)
    logits = torch.tensor([[3.0, -3.0], [3.1, -3.1]])
    at_mean, beside = unknown_probability(logits, means_KK, *weibull.unbind(1), alpha=1)
    assert 0 < at_mean < 0.1
    assert beside > 0.9


def test_only_the_largest_distances_count():
    values = np.linspace(1, 30, 30)
    expected = fit_weibull(values[-5:])
    assert fit_tails([values], 5)[0] == pytest.approx(expected)
    assert fit_tails([np.concatenate([values, np.full(9, 0.1)])], 5)[0] == pytest.approx(expected)


def test_a_class_of_few_images_has_the_tails_of_the_others():
    many, more = np.linspace(1, 2, 20), np.linspace(3, 4, 20)
    found = fit_tails([many, more, np.array([0.5, 0.5])], 10)
    assert found[2] == pytest.approx(fit_weibull(np.concatenate([many[-10:], more[-10:]])))
    assert found[0] == pytest.approx(fit_weibull(many[-10:]))
    just_enough = np.linspace(5, 6, 10)
    assert fit_tails([many, just_enough], 20)[1] == pytest.approx(fit_weibull(just_enough))
    assert fit_tails([many, just_enough[:9]], 20)[1] == pytest.approx(fit_weibull(many))


def test_means_are_of_the_correctly_classified_images():
    logits = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3  # the fourth class has no images
    labels[logits.argmax(dim=1) == 2] = 0  # of the third, none is classified correctly
    means_KK, distances = mean_activations(logits, labels)
    for k in (0, 1):
        expected = reference.mean_activation(logits.double().tolist(), labels.tolist(), k)
        assert means_KK[k].tolist() == pytest.approx(expected)
        assert len(distances[k]) == ((labels == k) & (logits.argmax(dim=1) == k)).sum()
    third = [reference.centered(row) for row in logits[labels == 2].double().tolist()]
    assert means_KK[2].tolist() == pytest.approx(np.mean(third, axis=0).tolist())
    assert distances[2].tolist() == pytest.approx(
        [float(np.linalg.norm(np.subtract(row, means_KK[2].numpy()))) for row in third]
    )
    assert means_KK[3].tolist() == [0.0] * 4
    assert distances[3].size == 0


@pytest.mark.parametrize("alpha", [1, 2, 5])
def test_the_score_is_that_of_the_equations(alpha):
    generator = torch.Generator().manual_seed(1)
    logits, means = 6 * torch.randn(40, 5, generator=generator), 6 * torch.randn(5, 5, generator=generator)
    shape_K, scale_K = torch.tensor([0.7, 1.0, 2.0, 5.0, 9.0]), torch.tensor([3.0, 9.0, 12.0, 6.0, 15.0])
    shape_K, scale_K, means = shape_K.double(), scale_K.double(), means.double()
    found = unknown_probability(logits, means, shape_K, scale_K, alpha)
    fitted = (means.tolist(), shape_K.tolist(), scale_K.tolist(), alpha)
    expected = [reference.unknown_probability(row, *fitted) for row in logits.double().tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    moved = unknown_probability(logits + 7, means, shape_K, scale_K, alpha)
    torch.testing.assert_close(moved, found, rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_far_out_is_unknown_although_its_logit_is_largest():
    X, y = clusters(120, 120, 120)
    options = {"training": {"learning_rate": 0.05, "weight_decay": 5e-4}}
    fitted = classifier(**options).fit(X, y)
    known, _ = clusters(50, 50, 50, seed=1)
    far = 6 * CENTERS.repeat(20, axis=0) + np.random.default_rng(2).normal(0, 0.7, (60, 2))
    assert auroc(fitted.unknown_score(known), fitted.unknown_score(far)) > 0.99
    assert auroc(-fitted.unknown_score(known), -fitted.unknown_score(far)) < 0.01
    plain = classifier(**options).set_params(method="softmax").fit(X, y)
    assert auroc(plain.unknown_score(known), plain.unknown_score(far)) < 0.01
    assert np.array_equal(plain.predict_proba(known), fitted.predict_proba(known))
    between = np.random.default_rng(3).normal(0, 0.3, (60, 2))
    assert auroc(fitted.unknown_score(known), fitted.unknown_score(between)) > 0.9
    assert (fitted.predict(far) == -1).mean() > 0.9
    assert (fitted.predict(known) == -1).mean() < 0.15


@pytest.mark.parametrize("few", [1, 2, 3])
def test_a_class_of_few_images_is_accepted(few):
    """Its distances to a mean of its own are too small or too equal: those of the others count."""
    X, y = clusters(200, 200, few)
    head = fitted_head(X, y)
    assert torch.isfinite(head.weibull).all()
    known, _ = clusters(0, 0, 50, seed=1)
    far = 6 * CENTERS[[2]].repeat(50, axis=0)
    assert auroc(scores(head, known), scores(head, far)) > 0.99
    assert scores(head, known).quantile(0.9) < 0.5


def fitted_head(X, y):
    """On a layer that tells the classes apart by construction."""
    head = OpenMaxHead(HeadShape(2, 3, 2, 1))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(CENTERS) / 6)
        head.bias.zero_()
    z_ND = torch.from_numpy(X).float()
    head.fit_after(z_ND, head(z_ND).detach(), torch.from_numpy(y))
    return head


def scores(head, X):
    z_BD = torch.from_numpy(X).float()
    return head.unknown_scores(z_BD, head(z_BD).detach())["openmax"]


def test_options_that_make_no_sense_are_refused():
    for option in ({"tail": 0}, {"alpha": 1.5}):
        with pytest.raises(UsageError, match=r"1 or more|expected int"):
            create_head(HeadConfig("openmax", option), HeadShape(2, 3, 2, 1))
    assert OpenMaxHead(HeadShape(2, 3, 2, 1)).alpha == 3
