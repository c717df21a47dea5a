"""Methods that put a head of their own on the encoder are exported like any other, with their own scores."""

import math

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.heads import HeadConfig
from pmal.methods import METHODS
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.scores import LOGIT_SCORES, unknown_scores
from pmal.serving.onnx.decision_graph import DecisionGraph
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.parity import Images
from tests.serving.exports import some_images
from tests.serving.tiny_model import CLASSES, HELD_OUT, SIZE, pictures_of

pytestmark = pytest.mark.slow

LIKE_ANOTHER = {"rpl", "arpl+cs"}
"""They answer as rpl++ and arpl do."""
HEADS = sorted({method.final or method.head for method in METHODS.values()} - {"linear"} - LIKE_ANOTHER)


def model_with(head):
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("small"), CLASSES, SIZE, 1, HeadConfig(head))
    network = Classifier(spec).eval()
    network.set_normalization(torch.full((1,), 0.5), torch.full((1,), 0.3))
    labels = torch.arange(3).repeat_interleave(HELD_OUT)
    with torch.no_grad():
        z, logits = network.embed(torch.cat([pictures_of(k, HELD_OUT, 2) for k in range(3)]))
    network.head.fit_after(z, logits, labels)
    own = network.head.own_scores
    scores = unknown_scores(z, logits, None, None, (*LOGIT_SCORES, *own), network.head)
    rule = Rule(own[0] if own else "logit", 0.8)
    return OpenSetModel(network, CLASSES, rule, calibration=Calibration.fit(scores, logits.argmax(dim=1)))


@pytest.mark.parametrize("head", HEADS)
def test_the_exported_file_decides_as_the_model_does(head):
    found = export_onnx(model_with(head), Images(some_images(), "some images"))
    assert found.parity.decisions_differ == 0
    assert found.header.score == (model_with(head).classifier.head.own_scores or ("logit",))[0]


@pytest.mark.parametrize("head", ["openmax", "proser"])
def test_a_broken_network_answers_unknown_by_its_own_score(head):
    graph = DecisionGraph(model_with(head)).eval()
    graph.network.mean.fill_(math.nan)
    graph.limits_K.fill_(math.inf)
    with torch.no_grad():
        label, _, score, *_ = graph(some_images())
    assert (label == -1).all()
    assert (score == math.inf).all()
