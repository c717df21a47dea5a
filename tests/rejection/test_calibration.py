"""Thresholds from held-out scores, and the combined score that half of them are the scale of."""

import numpy as np
import pytest
import torch

from pmal.errors import UsageError
from pmal.rejection import calibration as module
from pmal.rejection.calibration import Calibration
from pmal.rejection.scores import ScoreScale, combined_score
from pmal.rejection.thresholds import conformal_threshold, per_class_thresholds


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


def test_the_combined_threshold_rests_on_images_that_did_not_make_its_scale():
    scores, predictions = draw(200)
    found = Calibration.fit(scores, predictions)
    everybody, others = combined_score(scores, found.scale).tolist(), found.scores["combined"].tolist()
    second = [everybody.index(value) for value in others]
    first = sorted(set(range(200)) - set(second))
    assert len(second) == len(first) == 100
    assert set(found.scale.quantiles) == {"distance", "neighbors", "logit"}
    again = ScoreScale.fit({name: values[first] for name, values in scores.items()}, {"neighbors": 2.0})
    assert found.scale.to_lists() == {name: again.to_lists()[name] for name in found.scale.to_lists()}
    assert found.threshold("combined", 0.9) == conformal_threshold(others, 0.9)
    by_class = found.class_thresholds("combined", 0.9, 3)
    assert by_class == per_class_thresholds(others, predictions[second], 3, 0.9)


def test_both_halves_see_every_class_of_images_in_order():
    """With an image or two per class, every other one would leave half of the classes out."""
    first, second = module._halves(200)
    for half in (first, second):
        assert len({int(i) % 2 for i in half}) == 2
        assert len(half[half < 100]) > 30
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(200))


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


def test_an_odd_image_goes_to_the_scale():
    """A saved calibration has as many combined scores: other halves would give them to other images."""
    found = Calibration.fit(*draw(61))
    assert [len(found.scale.quantiles["logit"]), len(found.scores["combined"])] == [31, 30]


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
