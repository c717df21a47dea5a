"""What a model says of a set: the scores side by side, the joint one, and thresholds of every score."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pmal.benchmark.far.far_scores import BOTH, ask, figures, limits
from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.training_scores import TrainingScores
from pmal.rejection.typicality.of_layers import TYPICALITY, fit_typicality
from pmal.reporting.metrics import auroc, fpr_at_tpr

CPU = torch.device("cpu")


def smooth_images(count, seed):
    """Blobs of any place and size: images that have something in common."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:12, :12]
    place, width = rng.uniform(3, 9, (2, count, 1, 1)), rng.uniform(1.5, 3, (count, 1, 1))
    blobs = 255 * np.exp(-((y - place[0]) ** 2 + (x - place[1]) ** 2) / (2 * width**2))
    return torch.from_numpy(blobs.astype(np.uint8))[:, None]


@pytest.fixture(scope="module")
def subject():
    """A model with two lines of defense, and what it learned of its training images."""
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 12, 1)).eval()
    train, held = smooth_images(300, 0), smooth_images(200, 1)
    typicality = fit_typicality(network, ResidentImages(train, CPU))
    model = OpenSetModel(network, ("a", "b"), Rule("logit"), typicality=typicality)
    z, logits, far = model.embed(held)
    calibration = Calibration.fit(model.scores(z, logits, far), logits.argmax(dim=1)).keeping(z, None)
    with torch.no_grad():
        bank, _ = network.embed(train)
    return replace(model, calibration=calibration), TrainingScores.fit(
        bank, torch.arange(300) % 2, network.head
    )


def said(subject, images):
    return ask(*subject, ResidentImages(images, CPU), lambda n: None)


def test_a_set_is_answered_as_the_model_answers_it(subject):
    model, _ = subject
    noise = torch.randint(0, 256, (60, 1, 12, 12), dtype=torch.uint8)
    for images in (smooth_images(90, 2), noise):
        found = said(subject, images)
        assert found.count == len(images)
        both = (model.answer(images).labels < 0).double().mean()
        near = (replace(model, typicality=None).answer(images).labels < 0).double().mean()
        assert found.rejected == {"near": float(near), "both": float(both)}
        assert {"logit", TYPICALITY, "neighbors", "mahalanobis", "vim", "react", BOTH} <= set(found.scores)
    assert found.rejected["both"] == 1


def test_the_joint_score_is_the_one_that_the_model_decides_by(subject):
    model, _ = subject
    images = torch.cat([smooth_images(90, 2), torch.randint(0, 256, (60, 1, 12, 12), dtype=torch.uint8)])
    joint, answers = said(subject, images).scores[BOTH], model.answer(images)
    torch.testing.assert_close(joint, answers.score)
    assert joint[90:].min() > joint[:90].max()
    assert len(joint[90:].unique()) > 50 > 2 >= len(answers.p_values[90:].unique())  # where p-values tie


def test_every_score_has_the_threshold_of_the_held_out_images(subject):
    model, training = subject
    found = limits(model, training)
    assert set(found) == {*model.calibration.scores, "neighbors", "mahalanobis", "vim", "react"}
    held = training.scores(model.calibration.z, model.logits(model.calibration.z))
    assert found["vim"] == conformal_threshold(held["vim"], 0.95).value
    assert found["logit"] == model.calibration.threshold("logit", 0.95).value
    assert set(limits(model, None)) == set(model.calibration.scores)
    assert limits(replace(model, calibration=None), training) == {}


def test_figures_are_those_of_the_metrics(subject):
    known = said(subject, smooth_images(90, 2))
    other = said(subject, torch.randint(0, 256, (60, 1, 12, 12), dtype=torch.uint8))
    thresholds = limits(*subject)
    found = figures(known, other, thresholds)
    assert set(found) == set(other.scores)
    for name, row in found.items():
        sides = known.scores[name], other.scores[name]
        assert (row["auroc"], row["fpr95"]) == (auroc(*sides), fpr_at_tpr(*sides))
    rejected = float((other.scores["vim"] > thresholds["vim"]).double().mean())
    assert found["vim"]["rejected"] == rejected
    assert found[BOTH]["auroc"] == 1  # noise is nothing like blobs
    assert "rejected" not in found[BOTH]  # that is the decision of the model


def test_a_model_without_held_out_images_has_rankings_alone(subject):
    model, training = subject
    found = said((replace(model, calibration=None), training), smooth_images(20, 3))
    assert found.rejected == {}
    assert BOTH not in found.scores
    assert {"logit", TYPICALITY, "vim"} <= set(found.scores)


def test_a_model_without_typicality_has_one_line_of_defense(subject):
    model, _ = subject
    found = said((replace(model, typicality=None), None), smooth_images(20, 3))
    assert set(found.rejected) == {"near"}
    assert BOTH not in found.scores
