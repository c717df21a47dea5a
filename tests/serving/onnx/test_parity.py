"""Every way in which a graph can differ from PyTorch is refused, for what it is. Nothing is exported here."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pmal.errors import PmalError
from pmal.rejection.model import Rule
from pmal.serving.onnx.decision_graph import DecisionGraph
from pmal.serving.onnx.parity import Images, check_parity
from tests.serving.exports import some_images
from tests.serving.tiny_model import make_model

IMAGES = Images(some_images(), "some")


class Fixed:
    """An exported model that answers what it is told to; `alone`: what it says in smaller batches."""

    takes_accept = False

    def __init__(self, answer, alone=None):
        self.answer, self.alone = answer, alone or {}

    def run(self, images, batch=64):
        told = self.answer | self.alone.get(batch, {})
        return {name: values[: len(images)] for name, values in told.items()}


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def right(model):
    """What the graph of the model says of the images."""
    graph = DecisionGraph(model).eval()
    with torch.no_grad():
        return dict(zip(graph.output_names, (out.numpy() for out in graph(IMAGES.pixels)), strict=True))


def spread(answer):
    return answer["score"].std()


def changed(values, by, at=0):
    """A copy of which one image's values are others."""
    values = values.copy()
    values[at] = values[at] + by
    return values


def test_what_differs_by_rounding_alone_is_taken(model, right):
    found = check_parity(model, Fixed(right | {"score": right["score"] + 1e-8 * spread(right)}), IMAGES)
    assert (found.images, found.compared_on, found.decisions_differ) == (48, "some", 0)
    assert 0 < found.score_difference < 1e-6


def test_scores_of_the_same_embeddings_differ_by_the_last_digits_only(model, right):
    wrong = right | {"score": changed(right["score"], 1e-4 * spread(right))}
    with pytest.raises(PmalError, match=r"scores differ by 0.0001 of their spread .*\(the same embeddings\)"):
        check_parity(model, Fixed(wrong), IMAGES)


def test_probabilities_and_weights_of_prototypes_are_compared_too(model, right):
    with pytest.raises(PmalError, match=r"probabilities differ by 0\.01 "):
        check_parity(model, Fixed(right | {"probabilities": changed(right["probabilities"], 0.01)}), IMAGES)
    with pytest.raises(PmalError, match="weights of prototypes differ"):
        check_parity(model, Fixed(right | {"attention": changed(right["attention"], 1e-3)}), IMAGES)


def test_embeddings_may_be_rounded_otherwise_but_not_be_others(model, right):
    def graph_of(z):
        """Scores and weights that fit the embeddings."""
        answers = model.answer_embedded(torch.from_numpy(z), torch.from_numpy(right["logits"]))
        weights = model.attention(torch.from_numpy(z), answers.nearest).numpy()
        return Fixed(right | {"embedding": z, "score": answers.score.numpy(), "attention": weights})

    assert check_parity(model, graph_of(right["embedding"] * np.float32(1 + 1e-6)), IMAGES).images == 48
    # A longer vector points the same way: its scores tell nothing.
    with pytest.raises(PmalError, match=r"embeddings differ .*\(batches of 64\)"):
        check_parity(model, graph_of(right["embedding"] * np.float32(1.001)), IMAGES)


@pytest.mark.parametrize("batch", [1, 7])
def test_smaller_batches_are_asked_again(model, right, batch):
    wrong = {batch: {"score": changed(right["score"], 0.01 * spread(right), at=14)}}
    with pytest.raises(PmalError, match=rf"scores differ .*\(batches of {batch}\)"):
        check_parity(model, Fixed(right, wrong), IMAGES)


def test_decisions_that_differ_far_from_the_threshold_are_counted_in_the_refusal(model, right):
    labels = right["label"].copy()
    labels[:2] = -1
    assert (right["label"][:2] >= 0).all()
    with pytest.raises(PmalError, match="2 of 48 decisions differ from those of PyTorch"):
        check_parity(model, Fixed(right | {"label": labels}), IMAGES)


def test_a_model_that_scores_nothing_is_refused_in_one_line():
    model = make_model(Rule("logit", threshold=0.0), prototypes=False)
    model.classifier.head.bias.data.fill_(math.nan)
    graph = DecisionGraph(model).eval()
    with torch.no_grad():
        answer = dict(zip(graph.output_names, (o.numpy() for o in graph(IMAGES.pixels)), strict=True))
    assert np.isposinf(answer["score"]).all()
    with pytest.raises(PmalError, match="probabilities differ by nan"):
        check_parity(model, Fixed(answer), IMAGES)


def test_a_score_that_overflows_in_both_is_no_difference(model, right, monkeypatch):
    """As a method's own score may."""
    score, label = right["score"].copy(), right["label"].copy()
    score[0], label[0] = math.inf, -1
    answers = type(model).answer_embedded

    def overflowing(self, *words):
        found = answers(self, *words)
        changed = {"score": torch.from_numpy(score), "labels": torch.from_numpy(label)}
        return replace(found, **changed)

    monkeypatch.setattr(type(model), "answer_embedded", overflowing)
    monkeypatch.setattr(type(model), "answer", lambda self, images: overflowing(self, *self.embed(images)))
    found = check_parity(model, Fixed(right | {"score": score, "label": label}), IMAGES)
    assert found.score_difference < 1e-6
