"""The graph is the model: before any export, in PyTorch, it gives the same answers."""

import math

import numpy as np
import pytest
import torch

from pmal.rejection.model import Rule
from pmal.rejection.scores import ScoreScale, combined_score
from pmal.serving.onnx.decision_graph import DecisionGraph, Surprise
from tests.serving.exports import by_nearest_prototype, some_images, with_added_class
from tests.serving.tiny_model import make_model

pytestmark = pytest.mark.slow

SCORES = ("probability", "logit", "energy", "distance", "neighbors", "combined")


def ask(model, images):
    graph = DecisionGraph(model).eval()
    with torch.no_grad():
        return dict(zip(graph.output_names, graph(images), strict=True))


def assert_same(model, images):
    found, expected = ask(model, images), model.answer(images)
    assert found["label"].tolist() == expected.labels.tolist()
    assert found["nearest"].tolist() == expected.nearest.tolist()
    for name, values in (("score", expected.score), ("threshold", expected.limits)):
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found["probabilities"], expected.probabilities, rtol=1e-5, atol=1e-9)
    return found, expected


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_every_score_decides_as_the_model_does(score, per_class):
    found, _ = assert_same(make_model(Rule(score, 0.8, per_class)), some_images())
    assert {-1} < set(found["label"].tolist())
    assert len(set(found["threshold"].tolist())) == (3 if per_class else 1)


def test_prototypes_are_weighed_as_the_model_does():
    model = make_model()
    found, expected = assert_same(model, some_images())
    weights = model.attention(expected.z, expected.nearest)
    torch.testing.assert_close(found["attention"], weights, rtol=1e-5, atol=1e-7)
    assert found["distances"].amin(dim=1).tolist() == found["score"].tolist()


def test_an_added_class_takes_its_images():
    found, _ = assert_same(with_added_class(), some_images())
    assert (found["nearest"] == 3).any()
    assert found["probabilities"].shape[1] == 3
    assert found["distances"].shape[1] == 4


def test_other_distances_and_thresholds_set_by_hand():
    assert_same(by_nearest_prototype(make_model()), some_images())
    found, _ = assert_same(make_model(Rule("logit", threshold=math.inf), prototypes=False), some_images())
    assert "distances" not in found
    assert (found["label"] >= 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_an_image_at_the_threshold_is_known(score):
    scores = ask(make_model(Rule(score, threshold=0.0)), some_images())["score"]
    at = int(scores.argsort()[len(scores) // 2])
    found = ask(make_model(Rule(score, threshold=scores[at].item())), some_images())
    assert found["score"][at] == found["threshold"][at]
    assert found["label"][at] == found["nearest"][at]
    assert ((found["label"] >= 0) == (scores <= scores[at])).all()


def test_a_broken_network_answers_unknown():
    for score in SCORES:
        model = make_model(Rule(score, threshold=math.inf))
        model.classifier.head.bias.data.fill_(math.nan)
        model.classifier.mean.fill_(math.nan)
        found = ask(model, some_images())
        assert (found["label"] == -1).all(), score
        assert (found["score"] == math.inf).all(), score


def test_surprise_is_that_of_the_combined_score():
    rng = np.random.default_rng(0)
    quantiles = np.sort(rng.normal(size=50).round(1))
    asked = torch.from_numpy(np.concatenate([quantiles, rng.normal(scale=3, size=200), [np.inf, -1e300]]))
    expected = combined_score({"a": asked}, ScoreScale({"a": quantiles}, {"a": 1.0}))
    torch.testing.assert_close(Surprise(quantiles)(asked), expected, rtol=1e-14, atol=0)
