"""Scores from training embeddings: of which images, and by which names."""

import torch

from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.heads import HeadConfig
from pmal.rejection import training_scores
from pmal.rejection.post_hoc import fit_gaussians, fit_vim, mahalanobis_score, vim_score
from pmal.rejection.scores import Reference, neighbor_score
from pmal.rejection.training_scores import (
    TrainingScores,
    is_scored,
    kept_embeddings,
    training_embeddings,
)

CPU = torch.device("cpu")


def make_network(head="linear"):
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("small"), ("a", "b"), 12, 1, HeadConfig(head))
    return Classifier(spec).eval()


def make_images(count):
    return torch.randint(0, 256, (count, 1, 12, 12), dtype=torch.uint8)


def test_the_bank_is_evenly_spaced_where_there_are_too_many_images(monkeypatch):
    monkeypatch.setattr(training_scores, "BANK_LIMIT", 5)
    network, images = make_network(), make_images(21)
    found = training_embeddings(network, ResidentImages(images, CPU))
    with torch.no_grad():
        expected, _ = network.embed(images[[0, 5, 10, 15, 20]])
    torch.testing.assert_close(found, expected)
    labels = torch.arange(21) % 2  # 0, 1, 0, 1, 0 at these places
    scores = TrainingScores.fit(found, labels, network.head)
    again = fit_gaussians(found, torch.tensor([0, 1, 0, 1, 0]))
    torch.testing.assert_close(scores.gaussians.means_KR, again.means_KR)


def test_scores_are_those_of_the_functions():
    network = make_network()
    with torch.no_grad():
        z, _ = network.embed(make_images(60))
        new, logits = network.embed(make_images(7))
    labels, head = torch.arange(60) % 2, network.head
    found = TrainingScores.fit(z, labels, head).scores(new, logits)
    assert list(found) == ["neighbors", "mahalanobis", "vim", "react"]
    torch.testing.assert_close(found["neighbors"], neighbor_score(new, z, 5))
    torch.testing.assert_close(found["mahalanobis"], mahalanobis_score(new, fit_gaussians(z, labels)))
    vim = fit_vim(z, head.weight.detach(), head.bias.detach())
    torch.testing.assert_close(found["vim"], vim_score(new, logits, vim))


def test_few_images_and_a_head_without_bias_are_enough():
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small", bias=False), ("a", "b"), 12, 1)).eval()
    with torch.no_grad():
        z, logits = network.embed(make_images(3))
    found = TrainingScores.fit(z, torch.tensor([0, 1, 1]), network.head).scores(z, logits)
    assert all(score.isfinite().all() for score in found.values())


def test_only_networks_with_a_linear_head_have_them():
    assert is_scored(make_network())
    assert not is_scored(make_network("arpl"))


def test_embeddings_that_a_model_keeps_are_taken_where_they_are_of_these_images(monkeypatch):
    bank = torch.zeros(7, 4)
    reference = Reference(torch.zeros(2, 1, 4), torch.ones(2, 1, dtype=torch.bool), "nearest", bank)
    assert kept_embeddings(None, 7) is None
    assert kept_embeddings(reference, 7) is bank
    assert kept_embeddings(reference, 9) is None  # such as with a class that was added
    monkeypatch.setattr(training_scores, "BANK_LIMIT", 7)
    assert kept_embeddings(reference, 9) is bank
