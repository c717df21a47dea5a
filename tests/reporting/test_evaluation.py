"""The figures of a run, against the metrics called one by one and against loops over plain lists."""

import copy
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from pmal._runtime.session import open_session
from pmal.config import EncoderConfig, Resources
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import Part
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.scores import LOGIT_SCORES, Reference, unknown_scores
from pmal.reporting.evaluation import _model_figures, evaluate, measure_model
from pmal.reporting.metrics import (
    accuracy_interval,
    aupr_in,
    aupr_out,
    auroc,
    expected_calibration_error,
    fpr_at_tpr,
    macro_f1,
    open_set_metrics,
    oscr,
)
from tests.reference import metrics as reference

N, M, K = 60, 40, 5
SESSION = open_session(Resources(device="cpu"))


def evaluate_logits(known, labels, unknown):
    def scores(logits):
        return unknown_scores(torch.zeros(len(logits), 1), logits)

    return evaluate(known, labels, scores(known), None if unknown is None else scores(unknown))


@pytest.fixture(scope="module")
def logits():
    """Known samples mostly right and peaked, unknown ones flatter; some of each the other way round."""
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(K, (N,), generator=random)
    known = 2 * torch.randn(N, K, generator=random)
    known[torch.arange(N), labels] += 3
    return known, labels, 2 * torch.randn(M, K, generator=random)


def plain_scores(logits):
    """By their definitions, in plain Python."""
    rows = logits.double().tolist()
    return {
        "probability": [1 - max(map(math.exp, row)) / sum(map(math.exp, row)) for row in rows],
        "logit": [-max(row) for row in rows],
        "energy": [-math.log(sum(map(math.exp, row))) for row in rows],
    }


def test_every_score_has_the_figures_of_the_loops(logits):
    known, labels, unknown = logits
    figures = evaluate_logits(known, labels, unknown)
    right = [row.index(max(row)) == label for row, label in zip(known.tolist(), labels.tolist(), strict=True)]
    assert 0 < sum(right) < N
    assert set(figures["scores"]) == {"probability", "logit", "energy"}
    of_known, of_unknown = plain_scores(known), plain_scores(unknown)
    for name, found in figures["scores"].items():
        expected = {
            "auroc": reference.auroc(of_known[name], of_unknown[name]),
            "fpr95": reference.fpr_at_tpr(of_known[name], of_unknown[name], 0.95),
            "oscr": reference.oscr(right, of_known[name], of_unknown[name]),
            "aupr_out": reference.average_precision(of_unknown[name], of_known[name]),
        }
        assert {metric: found[metric]["value"] for metric in expected} == pytest.approx(expected, abs=1e-12)
        assert 0.5 < found["auroc"]["value"] < 1


def test_figures_are_those_of_the_metrics_with_their_intervals(logits):
    known, labels, unknown = logits
    figures = evaluate_logits(known, labels, unknown)
    correct = known.argmax(dim=1) == labels
    assert figures["accuracy"] == asdict(accuracy_interval(correct))
    confidence = torch.softmax(known.double(), dim=1).max(dim=1).values
    assert figures["calibration_error"] == expected_calibration_error(confidence, correct)
    assert (figures["known_images"], figures["unknown_images"]) == (N, M)
    for name, score in LOGIT_SCORES.items():
        sides = score(known), score(unknown)
        found = figures["scores"][name]
        values = {metric: estimate["value"] for metric, estimate in found.items()}
        assert values == {
            "auroc": auroc(*sides),
            "fpr95": fpr_at_tpr(*sides),
            "oscr": oscr(correct, *sides),
            "aupr_in": aupr_in(*sides),
            "aupr_out": aupr_out(*sides),
        }
        assert found == {metric: asdict(e) for metric, e in open_set_metrics(correct, *sides).items()}
        assert found["auroc"]["low"] < found["auroc"]["value"] < found["auroc"]["high"]
    assert json.loads(json.dumps(figures)) == figures


def test_direction():
    """Known samples peaked and unknown ones flat: every score tells them apart, and only this way round."""
    peaked, flat = 9 * torch.eye(K), torch.linspace(0.1, 0.5, 2 * K).view(2, K)
    labels = torch.tensor([0, 1, 2, 3, 0])
    for found in evaluate_logits(peaked, labels, flat)["scores"].values():
        values = {metric: found[metric]["value"] for metric in ("auroc", "fpr95", "oscr")}
        assert values == pytest.approx({"auroc": 1.0, "fpr95": 0.0, "oscr": 0.8})
    for found in evaluate_logits(flat, torch.tensor([K - 1, K - 1]), peaked)["scores"].values():
        values = {metric: found[metric]["value"] for metric in ("auroc", "fpr95", "oscr")}
        assert values == pytest.approx({"auroc": 0.0, "fpr95": 1.0, "oscr": 0.0})


def test_without_unknowns_there_are_closed_set_figures_alone(logits):
    known, labels, unknown = logits
    closed, both = evaluate_logits(known, labels, None), evaluate_logits(known, labels, unknown)
    assert closed["scores"] == {}
    assert closed["unknown_images"] == 0
    for name in ("accuracy", "calibration_error", "known_images"):
        assert closed[name] == both[name]


def test_what_the_threshold_does_with_the_test_images_is_counted():
    spec = ClassifierSpec(EncoderConfig("precomputed"), ("ant", "bee"), 1, 2)
    held_out = {"logit": -torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double()}
    calibration = Calibration.fit(held_out, torch.zeros(5, dtype=torch.int64))
    model = OpenSetModel(
        Classifier(spec).eval(), spec.class_names, Rule("logit", 0.6), calibration=calibration
    )
    # The fourth of five scores accepts 0.6: logits of 2 and more. Of these the third is named wrongly.
    known = torch.tensor([[4.0, 0.0], [0.0, 2.0], [3.0, 0.0], [1.0, 0.0]])
    unknown = torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels, z = torch.tensor([0, 1, 1, 0]), torch.zeros(4, 128)
    decision = _model_figures(model, None, labels, [(z, known), (z[:3], unknown)])["decision"]
    assert decision["known_accepted"] == 3 / 4
    assert decision["unknown_rejected"] == 2 / 3
    answers = [0, 1, 0, -1, 0, -1, -1]
    assert decision["macro_f1"] == macro_f1([0, 1, 1, 0, -1, -1, -1], answers)
    assert decision["guaranteed"]
    closed = _model_figures(model, None, labels, [(z, known)])["decision"]
    assert closed["known_accepted"] == 3 / 4
    assert not {"unknown_rejected", "macro_f1"} & set(closed)


def test_the_plain_classifier_stands_beside_the_model_and_not_in_its_place():
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("small"), ("ant", "bee", "cow"), 8, 1)
    model, pixels = Classifier(spec).eval(), torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    plain = copy.deepcopy(model)  # the opposite of the model
    with torch.no_grad():
        for parameter in plain.head.parameters():
            parameter.neg_()
        own = model.embed(pixels)[1].argmax(dim=1).numpy()
    samples = Samples.whole(ArrayStore("x", pixels.permute(0, 2, 3, 1).numpy()), own, spec.class_names)
    part = Part(samples, ResidentImages(pixels, torch.device("cpu")), ())
    finished = OpenSetModel(model, spec.class_names, Rule("logit", threshold=0.0))
    parts = {"train": part, "test": part, "unknown": part}
    figures = measure_model(finished, plain, parts, SESSION).figures
    assert figures["accuracy"]["value"] == 1
    assert figures["softmax"]["accuracy"]["value"] == 0
    others = {"neighbors", "mahalanobis", "vim", "react"}
    assert set(figures["scores"]) == {*LOGIT_SCORES, *others}
    assert set(figures["softmax"]["scores"]) == {*LOGIT_SCORES, "typicality", *others}
    assert set(
        measure_model(finished, plain, {"test": part, "unknown": part}, SESSION).figures["scores"]
    ) == {*LOGIT_SCORES}
    closed = measure_model(finished, None, {"test": part}, SESSION).figures
    assert "softmax" not in closed
    assert closed["scores"] == {}


def test_embeddings_that_a_model_has_kept_are_those_of_the_training_images():
    """A model with a reference and one without have the same scores of it."""
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("small"), ("ant", "bee"), 8, 1)
    network, pixels = Classifier(spec).eval(), torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    samples = Samples.whole(
        ArrayStore("x", pixels.permute(0, 2, 3, 1).numpy()), np.arange(40) % 2, spec.class_names
    )
    part = Part(samples, ResidentImages(pixels, torch.device("cpu")), ())
    with torch.no_grad():
        z, _ = network.embed(pixels)
    reference = Reference(z[:2, None], torch.ones(2, 1, dtype=torch.bool), "nearest", z)
    parts = {"train": part, "test": part, "unknown": part}
    bare, kept = (
        measure_model(
            OpenSetModel(network, spec.class_names, Rule("logit"), found), None, parts, SESSION
        ).figures
        for found in (None, reference)
    )
    assert set(kept["scores"]) - set(bare["scores"]) == {"distance"}
    assert all(kept["scores"][name] == figures for name, figures in bare["scores"].items())
