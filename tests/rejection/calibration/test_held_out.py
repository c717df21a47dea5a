"""Thresholds from held-out scores, and the combined score that they are the scale of."""

import dataclasses

import numpy as np
import pytest
import torch

from pmal.errors import UsageError
from pmal.rejection.calibration import held_out as module
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import conformal_threshold, per_class_thresholds
from pmal.rejection.scores import ScoreScale, combined_score


def draw(n, seed=0):
    random = torch.Generator().manual_seed(seed)
    scores = {name: torch.randn(n, generator=random).double() for name in ("logit", "distance", "neighbors")}
    return scores, torch.randint(3, (n,), generator=random)


def complete(found, scores):
    return {**scores, "combined": combined_score(scores, found.scale)}


def test_thresholds_are_those_of_the_scores():
    scores, predictions = draw(200)
    found = Calibration.fit(scores, predictions)
    assert found.threshold("distance", 0.9) == conformal_threshold(scores["distance"], 0.9)
    per_class = found.class_thresholds("distance", 0.9, 3)
    assert per_class == per_class_thresholds(scores["distance"], predictions, 3, 0.9)


def test_each_combined_score_is_by_the_images_outside_its_fold():
    scores, predictions = draw(57)
    found = Calibration.fit(scores, predictions)
    weights = {"distance": 1.0, "neighbors": 2.0, "logit": 1.0}
    assert found.scale.to_lists() == ScoreScale.fit(scores, weights).to_lists()
    folds = module._folds(57)
    assert sorted(int(i) for fold in folds for i in fold) == list(range(57))
    for fold in folds:
        rest = [i for i in range(57) if i not in fold.tolist()]
        scale = ScoreScale.fit({name: values[rest] for name, values in scores.items()}, weights)
        expected = combined_score({name: values[fold] for name, values in scores.items()}, scale)
        torch.testing.assert_close(found.scores["combined"][fold], expected)
    own = found.scores["combined"]
    assert found.threshold("combined", 0.9) == conformal_threshold(own, 0.9)
    assert found.class_thresholds("combined", 0.9, 3) == per_class_thresholds(own, predictions, 3, 0.9)


def test_folds_see_images_of_every_class_in_order():
    for fold in module._folds(200):
        assert len(fold) == 20
        assert 3 < len(fold[fold < 100]) < 17


def test_a_model_of_version_0_1_has_the_combined_scores_of_half_of_its_images():
    scores, predictions = draw(61)
    found = Calibration.fit(scores, predictions)
    second = module._second_half(61)
    old = dataclasses.replace(found, scores={**scores, "combined": found.scores["combined"][second]})
    by_class = old.class_thresholds("combined", 0.6, 3)
    assert len(second) == 30
    assert by_class == per_class_thresholds(old.scores["combined"], predictions[second], 3, 0.6)


RELATED = {
    "alike": [[1, 0.9, 0.8], [0.9, 1, 0.9], [0.8, 0.9, 1]],
    "opposed": [[1, -0.4, -0.4], [-0.4, 1, -0.4], [-0.4, -0.4, 1]],
    "independent": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 60, 300])
@pytest.mark.parametrize("related", RELATED)
def test_the_combined_score_accepts_what_is_promised(related, n):
    """Each image was compared with nine tenths of the others, a new one with all: the promise still holds."""
    rng, root = np.random.default_rng(n), np.linalg.cholesky(np.array(RELATED[related]))
    shares = []
    for _ in range(400):
        x = np.exp(rng.normal(size=(n + 200, 3)) @ root.T)
        scores = {name: torch.from_numpy(x[:, i]) for i, name in enumerate(module.COMBINED)}
        found = Calibration.fit({k: v[:n] for k, v in scores.items()}, torch.zeros(n, dtype=torch.int64))
        new = combined_score({k: v[n:] for k, v in scores.items()}, found.scale)
        shares.append(float((new <= found.threshold("combined", 0.9).value).double().mean()))
    error = np.std(shares) / np.sqrt(len(shares))
    assert 0.9 - 3 * error <= np.mean(shares) <= 0.93 + 0.8 / n


@pytest.mark.slow
@pytest.mark.parametrize("score", ["distance", "combined"])
def test_new_known_images_are_accepted_as_often_as_promised(score):
    """Over many draws of both, the share is the promise, up to what chance allows."""
    shares = []
    for seed in range(300):
        found = Calibration.fit(*draw(99, seed))
        new = complete(found, draw(50, 10_000 + seed)[0])[score]
        shares.append(float((new <= found.threshold(score, 0.9).value).double().mean()))
    error = np.std(shares) / np.sqrt(len(shares))
    assert 0.9 - 4 * error <= np.mean(shares) <= 0.93


def test_more_unknown_in_every_score_is_more_unknown_combined():
    found = Calibration.fit(*draw(60))
    new, _ = draw(7, seed=5)
    farther = {name: values + 1 for name, values in new.items()}
    assert (complete(found, farther)["combined"] > complete(found, new)["combined"]).all()


def test_without_two_scores_to_combine_there_is_no_combined_one():
    scores, predictions = draw(60)
    flat = dict.fromkeys(("distance", "neighbors"), torch.zeros(60))
    for few in ({"logit": scores["logit"]}, {**scores, **flat}):
        found = Calibration.fit({name: values.double() for name, values in few.items()}, predictions)
        assert found.scale is None
        assert "combined" not in found.scores


def test_of_many_embeddings_evenly_spaced_ones_are_kept_with_their_labels(monkeypatch):
    monkeypatch.setattr(module, "EMBEDDINGS_LIMIT", 10)
    z_ND, found = torch.arange(25.0)[:, None], Calibration.fit(*draw(25))
    kept = found.keeping(z_ND, 2 * torch.arange(25))
    assert kept.z[:, 0].tolist() == list(range(0, 25, 3))
    assert kept.labels.tolist() == list(range(0, 50, 6))
    assert found.keeping(z_ND[:10], None).z.tolist() == z_ND[:10].tolist()


def test_a_score_it_does_not_have_is_named():
    with pytest.raises(UsageError, match="unknown score 'distence': did you mean 'distance'"):
        Calibration.fit(*draw(60)).threshold("distence", 0.9)
