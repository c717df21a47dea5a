import math

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf

from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.errors import DataError
from pmal.rejection.typicality import of_layers as module
from pmal.rejection.typicality.of_layers import OFFSET, SHARE, always_typical, fit_typicality, typicality_of
from pmal.rejection.typicality.whitening import principal_directions
from tests.rejection.typicality.blobs import CPU, smooth_images


def make_network(size=12):
    torch.manual_seed(0)
    return Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), size, 1)).eval()


def some_statistics(rng, count, channels):
    """Means of any sign and deviations of several sizes."""
    found = rng.normal(size=(count, 2 * channels))
    found[:, channels:] = np.abs(found[:, channels:]) * 10.0 ** np.arange(channels)
    return found.astype(np.float32)


def with_logs(statistics, of_training):
    """The formula, number by number: the logarithm of each deviation relative to the mean one."""
    found, half = statistics.astype(np.float64), statistics.shape[1] // 2
    for i in range(len(found)):
        for c in range(half, 2 * half):
            usual = sum(float(row[c]) for row in of_training) / len(of_training)
            found[i, c] = SHARE * math.log(found[i, c] / usual + OFFSET)
    return found


def test_with_all_directions_distances_are_those_of_the_shrunk_covariance():
    rng = np.random.default_rng(0)
    known, new = (rng.normal(size=(n, 6)) @ rng.normal(size=(6, 6)) for n in (40, 9))
    mean, directions = principal_directions(known.astype(np.float32))
    found = np.linalg.norm((new - mean.double().numpy()) @ directions.double().numpy(), axis=1)
    reference = LedoitWolf().fit(known.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(found**2, reference.mahalanobis(new), rtol=1e-4)


def test_the_score_is_the_distance_in_the_main_directions_of_all_layers():
    """Each layer's two main directions by an eigenvalue decomposition of its own, then all together."""
    rng = np.random.default_rng(1)
    layers = {name: some_statistics(rng, 30, width) for name, width in (("a", 3), ("b", 5))}
    new = {name: some_statistics(rng, 4, x.shape[1] // 2) for name, x in layers.items()}
    reduced, reduced_new = [], []
    for name, statistics in layers.items():
        x, x_new = (with_logs(some, statistics) for some in (statistics, new[name]))
        fitted = LedoitWolf().fit(x)
        values, vectors = np.linalg.eig(fitted.covariance_)
        main = vectors[:, values.argsort()[-2:]] / np.sqrt(np.sort(values)[-2:])
        reduced.append((x - fitted.location_) @ main)
        reduced_new.append((x_new - fitted.location_) @ main)
    together = LedoitWolf(assume_centered=False).fit(np.concatenate(reduced, axis=1))
    expected = np.sqrt(together.mahalanobis(np.concatenate(reduced_new, axis=1)))
    fitted = typicality_of(layers, directions=2)
    found = fitted({name: torch.from_numpy(x).float() for name, x in new.items()})
    assert found.dtype == torch.float64
    assert fitted.whitening.shape == (4, 4)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3)


def test_flat_channels_are_far_and_finitely_so():
    """Fails where the deviations count as they are: a flat image is then near to one of low contrast."""
    rng = np.random.default_rng(0)
    usual = rng.uniform(0.5, 1.5, (200, 3)).astype(np.float32)
    fitted = typicality_of({"a": np.concatenate([np.zeros_like(usual), usual], axis=1)})
    factors = torch.tensor([[0.0], [0.5], [1.0], [1.5], [3.0]])
    found = fitted({"a": torch.cat([torch.zeros(5, 3), factors * torch.ones(1, 3)], dim=1)})
    assert found.isfinite().all()
    assert found[0] > found[4] > found[1] > found[3] > found[2]


def test_a_channel_that_never_varies_is_no_division_by_zero():
    statistics = np.zeros((20, 4), np.float32)
    statistics[:, :2] = np.random.default_rng(0).normal(size=(20, 2))
    fitted = typicality_of({"a": statistics})
    same, other = torch.from_numpy(statistics[:1]), torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    assert fitted({"a": same}).isfinite().all()
    assert fitted({"a": other}) > 4 * fitted({"a": same})


def test_what_is_unlike_the_training_images_scores_higher():
    """Fails where the sign of the score flips."""
    network, known = make_network(), smooth_images(400)
    fitted = fit_typicality(network, ResidentImages(known, CPU))
    new = smooth_images(200, seed=1)
    noise = torch.randint(0, 256, (200, 1, 12, 12), dtype=torch.uint8)
    scores = {}
    with torch.no_grad():
        for name, images in (("known", new), ("noise", noise), ("inverted", 255 - new)):
            scores[name] = fitted(network.embed_observed(images)[2])
    limit = scores["known"].quantile(0.95)
    assert (scores["noise"] > limit).all()
    assert (scores["inverted"] > limit).double().mean() > 0.95


def test_many_training_images_are_fitted_by_some_of_them(monkeypatch):
    network, images = make_network(), smooth_images(30)
    monkeypatch.setattr(module, "FITTED_IMAGES", 10)
    few = images[np.linspace(0, 29, 10).round().astype(int)]
    expected = fit_typicality(network, ResidentImages(few, CPU))
    found = fit_typicality(network, ResidentImages(images, CPU))
    seen = []
    fit_typicality(network, ResidentImages(images, CPU), advance=seen.append)
    assert sum(seen) == 10
    assert found.names == expected.names


def test_one_image_and_constant_statistics_are_enough():
    network, one = make_network(), smooth_images(1)
    fitted = fit_typicality(network, ResidentImages(one, CPU))
    with torch.no_grad():
        same, other = (fitted(network.embed_observed(x)[2]) for x in (one, smooth_images(1, seed=5)))
    assert torch.isfinite(same).all()
    assert other > same


def test_what_breaks_the_network_is_not_typical():
    fitted = typicality_of({"a": some_statistics(np.random.default_rng(0), 20, 1)})
    broken = torch.tensor([[math.nan, 0.0], [math.inf, 0.0]])
    assert fitted({"a": broken}).tolist() == [math.inf, math.inf]
    with pytest.raises(DataError, match="not finite"):
        principal_directions(np.array([[np.nan, 0.0]], np.float32))


def test_embeddings_of_another_network_are_compared_with_classes_or_not_at_all():
    spec = ClassifierSpec(EncoderConfig("precomputed"), ("a", "b"), 1, 4)
    network = Classifier(spec).eval()
    vectors = ResidentImages(torch.randn(9, 4, 1, 1), CPU)
    assert fit_typicality(network, vectors) is None
    fitted = fit_typicality(network, vectors, torch.arange(9) % 2)
    assert fitted.names == network.observed == ("features",)
    assert fitted.get_buffer("means").shape == (2, 4)
    assert always_typical(torch.zeros(2, 3)).tolist() == [-math.inf] * 2
