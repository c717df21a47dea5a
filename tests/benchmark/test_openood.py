"""OpenOOD's formulas and ours say the same where they define the same."""

import numpy as np
import pytest
import torch

from benchmarks.other_libraries import Saved, metrics, of_openood, openood, our_scores
from pmal.ensemble.heads import HeadShape, LinearHead


@pytest.fixture(scope="module")
def saved():
    """Four classes of 60 embeddings each, and test images of these and of two others."""
    generator = torch.Generator().manual_seed(0)
    centers = 2 * torch.randn(6, 16, generator=generator)
    labels, test_labels = torch.arange(240) % 4, torch.arange(90) % 6
    z = (centers[labels] + torch.randn(240, 16, generator=generator)).relu()
    test_z = (centers[test_labels] + torch.randn(90, 16, generator=generator)).relu()
    head = LinearHead(HeadShape(16, 4, 1, 8)).double()
    head.load_state_dict({"weight": 0.3 * centers[:4].double(), "bias": torch.arange(4.0).double()})
    z, test_z = z.double(), test_z.double()
    with torch.no_grad():
        test_labels[test_labels > 3] = -1
        return Saved(z, head(z), labels, test_z, head(test_z), test_labels, head)


def test_scores_are_the_same_but_for_a_factor(saved):
    ours = our_scores(saved)
    for name, special, theirs, to_our_scale in of_openood(saved):
        if name != "openmax" and special != "k = 50":
            assert to_our_scale(theirs) == pytest.approx(ours[name], rel=1e-7, abs=1e-9), name


def test_openmax_agrees_in_order_alone(saved):
    [theirs] = [theirs for name, _, theirs, _ in of_openood(saved) if name == "openmax"]
    ours = our_scores(saved)["openmax"]
    assert np.corrcoef(np.argsort(np.argsort(ours)), np.argsort(np.argsort(theirs)))[0, 1] > 0.8
    assert not np.allclose(ours, theirs, atol=0.01)


def test_metrics_are_the_same_but_for_the_area_between_points(saved):
    known = saved.test_labels.numpy() >= 0
    score = -saved.test_logits.amax(dim=1).numpy()
    theirs = openood.metrics(-score, known)
    both = score[known], score[~known]
    assert theirs["AUROC"] == pytest.approx(metrics.auroc(*both), abs=1e-12)
    assert theirs["FPR95, roles changed"] == metrics.fpr_at_tpr(*both)
    assert theirs["FPR95"] == pytest.approx(metrics.fpr_at_tpr(-both[1], -both[0]))
    assert theirs["AUPR, known"] == pytest.approx(metrics.aupr_in(*both), abs=0.01)
    assert theirs["AUPR, unknown"] == pytest.approx(metrics.aupr_out(*both), abs=0.02)
