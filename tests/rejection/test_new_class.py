"""A class more for a finished model: what it takes, and what stays as it was."""

import dataclasses

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.errors import DataError, UsageError
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.new_class import add_class, class_probabilities, mine_class
from pmal.rejection.scores import Reference, unknown_scores

FEATURES, PER_CLASS = 6, 3


def cloud(axis, count, seed):
    noise = 0.1 * torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return noise + 2 * torch.eye(FEATURES)[axis]


@pytest.fixture(scope="module")
def model():
    """Two classes along axes 0 and 1 of a space that the network leaves as it is."""
    network = Classifier(ClassifierSpec(EncoderConfig("precomputed"), ("ant", "bee"), 1, FEATURES)).eval()
    with torch.no_grad():
        network.head.weight.copy_(torch.eye(FEATURES)[:2])
        network.head.bias.zero_()
    known_ND = torch.cat([cloud(0, 20, 0), cloud(1, 20, 1)])
    table_KTD = torch.stack([cloud(0, PER_CLASS, 2), cloud(1, PER_CLASS, 3)])
    reference = Reference(table_KTD, torch.ones(2, PER_CLASS, dtype=torch.bool), "point-to-set", known_ND)
    scores = unknown_scores(known_ND, known_ND[:, :2], reference)
    calibration = Calibration.fit(scores, known_ND[:, :2].argmax(dim=1))
    calibration = calibration.keeping(known_ND, torch.arange(40) // 20)
    gallery = tuple(tuple(Prototype(3 * k + t, f"{k}/{t}", 0.0, 1.0) for t in range(3)) for k in range(2))
    pictures = table_KTD.flatten(0, 1)[:, :, None, None]
    return OpenSetModel(network, ("ant", "bee"), Rule("logit"), reference, gallery, pictures, calibration)


def add(model, z_ND, name="cow"):
    files = [f"cow/{i}" for i in range(len(z_ND))]
    return add_class(model, name, z_ND, z_ND[:, :, None, None], files)


def test_samples_of_the_new_class_are_named_and_the_others_stay(model):
    wider, effect = add(model, cloud(2, 30, 4))
    assert wider.class_names == ("ant", "bee", "cow")
    assert wider.rule == Rule("distance")
    for axis in range(3):
        z_ND = cloud(axis, 25, 10 + axis)
        answers = wider.answer_embedded(z_ND, model.logits(z_ND))
        assert (answers.nearest == axis).all()
        assert (answers.labels == axis).double().mean() > 0.6
    z_ND = cloud(4, 25, 20)
    assert (wider.answer_embedded(z_ND, model.logits(z_ND)).labels == -1).all()
    assert (effect.held_out, effect.captured) == (40, 0)
    assert effect.accuracy_before == effect.accuracy_after == 1.0


def test_prototypes_pictures_and_gallery_go_together(model):
    z_ND = cloud(2, 30, 4)
    wider, effect = add(model, z_ND)
    members = wider.gallery[2]
    assert effect.prototypes == len(members) == PER_CLASS
    assert [member.file for member in members] == [f"cow/{member.id}" for member in members]
    chosen = z_ND[[member.id for member in members]]
    assert torch.equal(wider.reference.prototypes_KTD[2], chosen)
    assert torch.equal(wider.pictures[-PER_CLASS:, :, 0, 0], chosen)
    assert torch.equal(wider.reference.prototypes_KTD[:2], model.reference.prototypes_KTD)
    assert len(model.gallery) == 2


def test_a_class_of_few_samples_is_masked(model):
    wider, effect = add(model, cloud(2, 2, 4))
    assert effect.prototypes == 2
    assert wider.reference.mask_KT[2].tolist() == [True, True, False]
    z_ND = cloud(2, 9, 5)
    assert (wider.nearest_class(z_ND, model.logits(z_ND)) == 2).all()


def test_what_it_takes_from_the_others_is_counted(model):
    """A class in the place of another one takes its samples."""
    wider, effect = add(model, cloud(1, 30, 6))
    assert effect.captured > 5
    assert effect.accuracy_after == 1 - effect.captured / 40
    assert str(effect).startswith(f"class cow: 3 prototypes; takes {effect.captured} of 40 held-out")
    again, second = add(wider, cloud(3, 30, 7), name="dog")
    assert again.class_names[-1] == "dog"
    assert second.accuracy_before == effect.accuracy_after
    _, unmeasured = add(dataclasses.replace(model, calibration=None), cloud(2, 9, 4))
    assert "no held-out samples" in str(unmeasured)
    unlabeled = model.calibration.keeping(model.calibration.z, None)
    _, counted = add(dataclasses.replace(model, calibration=unlabeled), cloud(1, 30, 6))
    assert (counted.captured, counted.accuracy_after) == (effect.captured, None)
    assert "accuracy" not in str(counted)


def test_the_threshold_of_another_score_is_dropped_and_one_of_the_distance_kept(model):
    set_by_hand = dataclasses.replace(model, rule=Rule("logit", threshold=-1.0))
    assert add(set_by_hand, cloud(2, 9, 4))[0].rule.threshold is None
    for_distance = dataclasses.replace(model, rule=Rule("distance", threshold=0.3))
    assert add(for_distance, cloud(2, 9, 4))[0].rule.threshold == 0.3


@pytest.mark.parametrize("score", ["distance", "neighbors", "combined"])
def test_a_rule_that_can_judge_the_new_class_is_kept(model, score):
    wider, effect = add(dataclasses.replace(model, rule=Rule(score, 0.8, per_class=True)), cloud(2, 30, 4))
    assert wider.rule == Rule(score, 0.8, per_class=True)
    assert effect.rule_changed == (score == "combined")
    answers = wider.answer_embedded(z_ND := cloud(2, 50, 9), model.logits(z_ND))
    assert (answers.labels == 2).double().mean() > 0.5
    again, second = add(wider, cloud(3, 30, 7), name="dog")
    assert (again.rule, second.rule_changed) == (wider.rule, False)


def test_a_rule_that_cannot_is_changed_and_said(model):
    for score in ("probability", "logit", "energy"):
        wider, effect = add(dataclasses.replace(model, rule=Rule(score, 0.9)), cloud(2, 30, 4))
        assert wider.rule == Rule("distance", 0.9)
        assert (effect.rule_before, effect.rule_after) == (score, "distance")
        assert str(effect).endswith(f"; the rule changed from {score} to distance")
    for score in ("neighbors", "combined"):
        # Their fifth neighbor is a sample of another class.
        wider, effect = add(dataclasses.replace(model, rule=Rule(score)), cloud(2, 4, 4))
        assert (wider.rule, effect.rule_changed) == (Rule("distance"), True)


def test_a_threshold_on_the_scale_of_combined_is_dropped_with_its_part_of_logits(model):
    wider, effect = add(dataclasses.replace(model, rule=Rule("combined", threshold=2.5)), cloud(2, 30, 4))
    assert effect.rule_before == "combined of distance, neighbors, logit above 2.5"
    assert effect.rule_after == "combined of distance, neighbors"
    set_again = dataclasses.replace(wider, rule=Rule("combined", threshold=3.0))
    assert add(set_again, cloud(3, 30, 7), name="dog")[0].rule.threshold == 3.0


def test_pictures_of_a_large_image_are_made_small_as_those_of_the_others(model):
    pictures = torch.zeros(6, 3, 64, 64, dtype=torch.uint8)
    large = torch.zeros(9, 3, 96, 96, dtype=torch.uint8)
    z_ND = cloud(2, 9, 4)
    with_pictures = dataclasses.replace(model, pictures=pictures)
    wider, _ = add_class(with_pictures, "cow", z_ND, large, [f"cow/{i}" for i in range(9)])
    assert wider.pictures.shape == (9, 3, 64, 64)


def test_probabilities_sum_to_one_and_name_the_nearest_class(model):
    wider, _ = add(model, cloud(2, 30, 4))
    z_ND = torch.cat([cloud(axis, 20, 40 + axis) for axis in range(5)])
    z_ND = torch.cat([z_ND, (z_ND[:20] + z_ND[40:60]) / 2])
    logits_NK = model.logits(z_ND)
    found_NK = class_probabilities(wider, z_ND, logits_NK)
    torch.testing.assert_close(found_NK.sum(dim=1), torch.ones(len(z_ND), dtype=torch.float64))
    assert torch.equal(found_NK.argmax(dim=1), wider.nearest_class(z_ND, logits_NK))
    sure, between = found_NK[40:60, 2].mean(), found_NK[100:, 2].mean()
    assert sure > 0.7 > between > 0.2  # in units of logits: far is sure, half way is not
    trained_NK = class_probabilities(model, z_ND, logits_NK)
    torch.testing.assert_close(trained_NK, logits_NK.double().softmax(dim=1))


@pytest.mark.parametrize("score", ["distance", "neighbors"])
def test_known_samples_are_accepted_as_before(model, score):
    before = dataclasses.replace(model, rule=Rule(score))
    wider, _ = add(before, cloud(2, 30, 4))
    assert torch.equal(wider.limits()[:2], before.limits())
    z_ND = torch.cat([cloud(0, 200, 30), cloud(1, 200, 31)])
    old, new = (one.answer_embedded(z_ND, model.logits(z_ND)) for one in (before, wider))
    assert (new.score <= old.score + 1e-12).all()  # another batch shape may round otherwise
    assert ((new.labels >= 0) | (old.labels < 0)).all()


def test_prototypes_cover_the_class():
    """Two heaps of very different size both have a prototype."""
    z_ND = torch.cat([cloud(0, 40, 0), cloud(1, 4, 1)])
    mined = mine_class(z_ND, 2)
    assert sorted(i >= 40 for i in mined.ids.tolist()) == [False, True]
    nearness = mined.log_r[mined.ids < 40] > mined.log_r[mined.ids >= 40]
    assert nearness.all()


def test_the_length_of_an_embedding_does_not_count():
    z_ND = torch.cat([cloud(0, 20, 0), cloud(1, 20, 1)])
    longer = z_ND * torch.logspace(-2, 2, 40)[torch.arange(40) * 7 % 40, None]
    plain, stretched = mine_class(z_ND, 4), mine_class(longer, 4)
    assert plain.ids.tolist() == stretched.ids.tolist()
    torch.testing.assert_close(plain.log_r, stretched.log_r, rtol=1e-5, atol=1e-5)


def test_one_sample_or_equal_ones_are_enough_and_none_is_not():
    assert mine_class(cloud(0, 1, 0), 5).ids.tolist() == [0]
    assert len(mine_class(torch.ones(4, FEATURES), 3)) == 3
    for bad in (torch.zeros(0, FEATURES), torch.full((2, FEATURES), torch.nan)):
        with pytest.raises(DataError, match="needs samples whose embeddings are finite"):
            mine_class(bad, 3)


def test_a_model_without_prototypes_and_a_name_twice_are_refused(model):
    plain = dataclasses.replace(model, reference=None, gallery=(), pictures=None)
    with pytest.raises(UsageError, match=r"no prototypes.*method pmal"):
        add(plain, cloud(2, 9, 4))
    with pytest.raises(UsageError, match="class 'bee' exists already"):
        add(model, cloud(2, 9, 4), name="bee")
