import math

import numpy as np
import pytest
import torch

from pmal import auroc
from pmal.rejection.typicality.of_classes import class_typicality_of, usual_lengths
from tests.reference.class_typicality import class_typicality as reference


def problem(seed=0, classes=3, width=6, count=40):
    """Features of some classes, all but the last of which are known, with a length that says nothing."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes + 1, width)) * 2
    labels = np.repeat(np.arange(classes + 1), count)
    features = (centers[labels] + 0.5 * rng.normal(size=(len(labels), width))) * rng.uniform(
        0.1, 10, (len(labels), 1)
    )
    return features.astype(np.float32), labels


def score(fitted, features):
    return fitted({"features": torch.from_numpy(features)})


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_distance_of_a_loop_in_float64(seed):
    features, labels = problem(seed)
    known = labels < 3
    fitted = class_typicality_of(features[known], labels[known])
    np.testing.assert_allclose(
        score(fitted, features).numpy(), reference(features[known], labels[known], features), rtol=1e-4
    )


def test_an_unknown_class_is_less_typical_whatever_the_length_of_its_features():
    features, labels = problem()
    known = labels < 3
    fitted = class_typicality_of(features[known], labels[known])
    found = score(fitted, features)
    assert auroc(found[torch.from_numpy(known)], found[torch.from_numpy(~known)]) > 0.9
    torch.testing.assert_close(score(fitted, features * 10), found, rtol=1e-5, atol=1e-5)


def test_features_far_beyond_all_lengths_are_typical_of_no_class():
    """A wrong unit or scale is never a known class, whatever the direction."""
    features, labels = problem()
    fitted = class_typicality_of(features, labels)
    for factor in (1e6, 1e-6, 0.0):
        assert score(fitted, features * np.float32(factor)).isinf().all()
    alike = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    fitted = class_typicality_of(alike, labels)
    assert score(fitted, 3 * alike).isfinite().all()
    assert score(fitted, 11 * alike).isinf().all()


def test_training_features_of_length_zero_leave_no_bound():
    features, labels = problem()
    features[:10] = 0
    fitted = class_typicality_of(features, labels)
    assert fitted.get_buffer("lengths").isfinite().all()
    assert score(fitted, features * np.float32(1e6)).isfinite().all()
    assert usual_lengths(torch.zeros(4, 2)).tolist() == [0.0, 0.0]


def test_an_added_class_may_be_longer_than_the_others():
    features, labels = problem()
    known = labels < 3
    fitted = class_typicality_of(features[known], labels[known])
    long = torch.from_numpy(features[~known] * np.float32(1e6))
    assert fitted({"features": long}).isinf().all()
    wider = fitted.with_class(long)
    assert wider({"features": long}).isfinite().all()
    assert score(wider, features[known]).isfinite().all()


def test_an_added_class_is_typical_from_then_on_and_the_others_stay_so():
    features, labels = problem()
    known = labels < 3
    fitted = class_typicality_of(features[known], labels[known])
    wider = fitted.with_class(torch.from_numpy(features[~known]))
    before, after = score(fitted, features), score(wider, features)
    assert (after <= before + 1e-9).all()
    assert after[torch.from_numpy(~known)].mean() < before[torch.from_numpy(~known)].mean() / 2


def test_broken_features_are_never_typical():
    features, labels = problem()
    fitted = class_typicality_of(features, labels)
    broken = np.full((2, 6), np.nan, np.float32)
    broken[1] = np.inf
    assert score(fitted, broken).tolist() == [math.inf, math.inf]


def test_one_sample_of_a_class_is_enough():
    fitted = class_typicality_of(np.eye(3, dtype=np.float32), np.arange(3))
    assert (
        score(fitted, np.eye(3, dtype=np.float32)).max() < score(fitted, -np.eye(3, dtype=np.float32)).min()
    )
