"""Another threshold, with and without unknown samples to choose it by."""

import dataclasses

import numpy as np
import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.errors import UsageError
from pmal.rejection.calibration.recalibration import recalibrated
from pmal.rejection.calibration.thresholds import best_f1_threshold, conformal_threshold
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.scores import LOGIT_SCORES
from pmal.rejection.typicality.of_layers import always_typical


@pytest.fixture(scope="module")
def model():
    spec = ClassifierSpec(EncoderConfig("precomputed"), ("ant", "bee"), 1, 4)
    return OpenSetModel(Classifier(spec).eval(), ("ant", "bee"), Rule("logit", accept=0.9))


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(0)
    labels = torch.from_numpy(random.integers(-1, 2, 90))
    logits = torch.from_numpy(random.normal(size=(90, 2))) + 2.0 * (labels[:, None] == torch.arange(2))
    return torch.from_numpy(random.normal(size=(90, 4))).float(), logits, labels


@pytest.mark.parametrize("score", ["logit", "energy"])
def test_with_unknowns_the_best_macro_f1_of_the_score_that_decides(model, samples, score):
    z_ND, logits_NK, labels_N = samples
    deciding = dataclasses.replace(model, rule=Rule(score, accept=0.9))
    found = recalibrated(deciding, z_ND, logits_NK, always_typical(z_ND), labels_N)
    best = best_f1_threshold(labels_N, logits_NK.argmax(dim=1), LOGIT_SCORES[score](logits_NK))
    assert found.rule == Rule(score, accept=0.9, threshold=best.value)
    assert (found.limits() == best.value).all()


@pytest.mark.parametrize("labeled", [True, False])
def test_without_unknowns_the_promised_share(model, samples, labeled):
    z_ND, logits_NK, labels_N = (values[samples[2] >= 0] for values in samples)
    set_by_hand = dataclasses.replace(model, rule=Rule("logit", accept=0.9, threshold=5.0))
    found = recalibrated(set_by_hand, z_ND, logits_NK, always_typical(z_ND), labels_N if labeled else None)
    expected = conformal_threshold(-logits_NK.amax(dim=1), 0.9).value
    assert found.rule.threshold is None
    assert (found.limits() == expected).all()
    assert torch.equal(found.calibration.z, z_ND)
    assert (found.calibration.labels is None) != labeled


def test_a_score_that_the_samples_do_not_give_is_refused_at_once(model, samples):
    z_ND, logits_NK, _ = samples
    combined = dataclasses.replace(model, rule=Rule("combined"))
    with pytest.raises(UsageError, match="unknown score of this model 'combined'"):
        recalibrated(combined, z_ND, logits_NK, always_typical(z_ND), None)
