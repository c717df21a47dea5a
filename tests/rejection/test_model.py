"""Answers of a small untrained network: who decides, by what score, and what a threshold changes."""

import copy
import dataclasses
import gc
import math
import pickle
import weakref

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.errors import DataError, UsageError
from pmal.optimization.distances import point_to_set_distance
from pmal.rejection import model as module
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import REPLAYED, OpenSetModel, Prototype, Rule
from pmal.rejection.scores import Reference, unknown_scores
from tests.support.waiting import Watch

CPU = torch.device("cpu")
NAMES = ("ant", "bee", "cow")


def pictures(n, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 1, 12, 12), dtype=torch.uint8, generator=random)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Classifier(ClassifierSpec(EncoderConfig("small"), NAMES, 12, 1)).eval()


@pytest.fixture(scope="module")
def model(network):
    bank_ND, _ = embed_images(network, ResidentImages(pictures(30, 1), CPU))
    mask_KT = torch.tensor([[True, True], [True, False], [True, True]])
    reference = Reference(bank_ND[:6].view(3, 2, -1) * mask_KT[..., None], mask_KT, "point-to-set", bank_ND)
    gallery = tuple(
        tuple(Prototype(10 * k + t, f"{k}/{t}.png", -0.1, 1.0) for t in range(int(row.sum())))
        for k, row in enumerate(mask_KT)
    )
    z_ND, logits_NK = embed_images(network, ResidentImages(pictures(40, 2), CPU))
    calibration = Calibration.fit(unknown_scores(z_ND, logits_NK, reference), logits_NK.argmax(dim=1))
    return OpenSetModel(
        network, NAMES, Rule("distance", 0.5), reference, gallery, pictures(5, 1), calibration
    )


def test_decides_by_the_score_of_its_rule(network, model):
    images = pictures(20, 3)
    answers = model.answer(images)
    z_BD, logits_BK = network.embed(images)
    expected = unknown_scores(z_BD.detach(), logits_BK.detach(), model.reference)
    torch.testing.assert_close(
        model.scores(answers.z, logits_BK.detach())["neighbors"], expected["neighbors"]
    )
    torch.testing.assert_close(answers.score, expected["distance"])
    limit = conformal_threshold(model.calibration.scores["distance"], 0.5).value
    assert set(answers.limits.tolist()) == {limit}
    assert torch.equal(answers.labels, answers.nearest.where(answers.score <= limit, -1))
    assert 0 < int((answers.labels < 0).sum()) < 20
    torch.testing.assert_close(answers.probabilities, logits_BK.detach().double().softmax(1))


@pytest.mark.parametrize("score", ["probability", "logit", "energy", "distance", "neighbors", "combined"])
def test_a_stricter_rule_rejects_more(model, score):
    images = pictures(20, 3)
    rejected = [
        int((dataclasses.replace(model, rule=Rule(score, accept)).answer(images).labels < 0).sum())
        for accept in (0.95, 0.6, 0.2)
    ]
    assert rejected == sorted(rejected)
    assert rejected[0] < rejected[2]


def test_a_threshold_set_by_hand_goes_before_calibration(model):
    images = pictures(20, 3)
    for threshold, label in ((-1.0, True), (0.0, True), (3.0, False)):
        rule = Rule("distance", threshold=threshold)
        labels = dataclasses.replace(model, rule=rule).answer(images).labels
        assert bool((labels < 0).all()) == label


def test_thresholds_per_class(model):
    rule = Rule("distance", 0.5, per_class=True)
    found = dataclasses.replace(model, rule=rule).limits()
    expected = model.calibration.class_thresholds("distance", 0.5, 3)
    assert found.tolist() == [threshold.value for threshold in expected]


def test_each_image_is_held_against_the_threshold_of_the_class_that_it_was_taken_for(model):
    """Two classes have enough samples of their own, the third has the threshold of all together."""
    scores = torch.tensor([0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.95], dtype=torch.float64)
    calibration = Calibration({"logit": scores}, torch.tensor([0, 0, 0, 1, 1, 1, 2]), None)
    rule = Rule("logit", 0.6, per_class=True)
    made = dataclasses.replace(model, rule=rule, calibration=calibration)
    assert made.limits().tolist() == [0.3, 0.8, 0.7]
    logits = -torch.tensor([[0.25, 9, 9], [0.5, 9, 9], [9, 0.5, 9], [9, 0.9, 9], [9, 9, 0.75]])
    answers = made.answer_embedded(torch.zeros(5, 128), logits)
    assert answers.labels.tolist() == [0, -1, 1, -1, -1]
    assert answers.limits.tolist() == [0.3, 0.3, 0.8, 0.8, 0.7]
    assert made.guarantee() == (
        False,
        "no guarantee for 1 of 3 classes, which have the threshold of all together",
    )
    two = dataclasses.replace(calibration, predictions=torch.tensor([0, 0, 0, 1, 1, 2, 2]))
    lower = dataclasses.replace(made, calibration=two, rule=Rule("logit", 0.5, per_class=True))
    guaranteed, note = lower.guarantee()
    assert guaranteed
    assert note.startswith(
        "accepts at least 50 % of the known images taken for each class, on average; "
        "the threshold of the least certain class, with 2 held-out images, "
        "accepts 22.4 to 97.5 % (90 % range)"
    )


def test_attention_is_the_share_in_the_distance(model):
    """The weights put together again give the distance that decided."""
    answers = model.answer(pictures(4, 3))
    weights_BT = model.attention(answers.z, answers.nearest)
    distance_BK = point_to_set_distance(
        answers.z.double(), model.reference.prototypes_KTD.double(), model.reference.mask_KT
    )
    for b, k in enumerate(answers.nearest.tolist()):
        attended = weights_BT[b] @ model.reference.prototypes_KTD[k].double()
        cosine = torch.cosine_similarity(answers.z[b].double(), attended, dim=0)
        assert 1 - float(cosine) == pytest.approx(float(distance_BK[b, k]), abs=1e-9)
        assert float(weights_BT[b].sum()) == pytest.approx(1)


def test_an_added_class_takes_images_but_moves_none_between_the_others(model):
    images = pictures(20, 3)
    before = model.answer(images)
    new_1TD = before.z[:2][None]
    reference = dataclasses.replace(
        model.reference,
        prototypes_KTD=torch.cat([model.reference.prototypes_KTD, new_1TD]),
        mask_KT=torch.cat([model.reference.mask_KT, torch.tensor([[True, True]])]),
    )
    grown = dataclasses.replace(model, class_names=(*NAMES, "dog"), reference=reference)
    after = grown.answer(images)
    assert grown.score_names == ("distance", "neighbors")  # combined has a part of logits
    taken = after.nearest == 3
    assert taken[:2].all()
    assert torch.equal(after.nearest[~taken], before.nearest[~taken])


def test_a_plain_classifier_has_the_scores_of_its_logits(network):
    plain = OpenSetModel(network, NAMES, Rule("logit", threshold=math.inf))
    assert plain.score_names == ("probability", "logit", "energy")
    assert (plain.answer(pictures(3)).labels >= 0).all()
    with pytest.raises(UsageError, match="no prototypes: fit one with method pmal"):
        plain.attention(torch.zeros(1, 128), torch.zeros(1).long())


def test_without_threshold_or_score_it_says_what_to_do(network, model):
    with pytest.raises(UsageError, match="no threshold, because no images were held out"):
        OpenSetModel(network, NAMES, Rule("logit")).answer(pictures(3))
    with pytest.raises(UsageError, match="unknown score of this model 'distance'"):
        OpenSetModel(network, NAMES, Rule("distance", threshold=1.0)).answer(pictures(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_half_precision_decides_alike_on_a_gpu(model):
    gpu = dataclasses.replace(model, classifier=copy.deepcopy(model.classifier).to("cuda"))
    images, half = pictures(5000, 3), gpu.in_half_precision()
    full, fast, cpu = gpu.answer(images), half.answer(images), model.answer(images)
    assert full.score.device == fast.labels.device == CPU
    torch.testing.assert_close(full.score, cpu.score, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(fast.score, full.score, rtol=3e-2, atol=1e-3)
    assert (fast.labels == full.labels).float().mean() > 0.98
    assert next(gpu.classifier.encoder.parameters()).dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_images_may_be_on_another_device_than_the_network(model):
    images = pictures(200, 3)
    assert torch.equal(model.answer(images.cuda()).score, model.answer(images).score)


def test_a_model_that_has_answered_can_be_copied_and_pickled(model):
    images = pictures(3, 3)
    expected = model.answer(images)
    assert torch.equal(copy.deepcopy(model).answer(images).score, expected.score)
    assert pickle.dumps(model)


def test_a_model_that_has_answered_is_gone_when_nobody_has_it(model):
    other = dataclasses.replace(model)
    other.answer(pictures(1))
    other.answer(pictures(100))
    gone = weakref.ref(other)
    gc.disable()  # which would come late, and a GPU's memory be held until then
    try:
        del other
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("score", REPLAYED)
def test_what_a_gpu_replays_waits_for_nothing(model, score):
    model = dataclasses.replace(model, rule=Rule(score, 0.5))
    model.answer(pictures(4))
    with torch.no_grad(), Watch() as watch:
        model._embed_and_judge(pictures(4))
    assert watch.waiting == []


def test_one_image_gets_the_answer_that_it_gets_among_many(model, monkeypatch):
    many = model.answer(pictures(100, 3))  # more than a batch: embedded first, and judged together
    monkeypatch.setattr(module, "_ROWS", 30)  # and in blocks
    assert torch.equal(model.answer(pictures(100, 3)).labels, many.labels)
    for place in (0, 57, 99):
        one = model.answer(pictures(100, 3)[place : place + 1])
        assert one.labels[0] == many.labels[place]
        torch.testing.assert_close(one.score[0], many.score[place])
        torch.testing.assert_close(one.probabilities[0], many.probabilities[place])


def test_images_of_another_shape_are_refused(model):
    with pytest.raises(DataError, match=r"shape \(2, 3, 12, 12\): this model takes .* \(1, 12, 12\)"):
        model.answer(torch.zeros(2, 3, 12, 12, dtype=torch.uint8))


def test_a_broken_embedding_is_unknown(model):
    z_BD, logits_BK = torch.zeros(2, 128), torch.zeros(2, 3)
    z_BD[0], logits_BK[0, 0] = math.nan, math.nan
    for score in model.score_names:
        rule = Rule(score, threshold=math.inf)
        assert dataclasses.replace(model, rule=rule).answer_embedded(z_BD, logits_BK).labels[0] == -1


def test_only_the_score_that_decides_is_computed(model, monkeypatch):
    def refuse(*args):
        raise AssertionError("not needed")

    monkeypatch.setattr("pmal.rejection.scores.Reference.neighbor_score", refuse)
    model.answer(pictures(3))
    with pytest.raises(AssertionError, match="not needed"):
        dataclasses.replace(model, rule=Rule("combined", 0.5)).answer(pictures(3))


def test_the_guarantee_is_said_and_does_not_cover_added_classes(model):
    guaranteed, note = model.guarantee()
    assert guaranteed
    assert note == (
        "accepts at least 50 % of known images on average; with 40 held-out images, this threshold accepts "
        "38.5 to 63.9 % (90 % range); few held-out images: raise data.held_out, or add images"
    )
    more = dataclasses.replace(model, class_names=(*NAMES, "dog"))
    assert more.guarantee()[1].endswith("1 class that was added later is not covered")
    assert not dataclasses.replace(model, rule=Rule("distance", 0.99)).guarantee()[0]
    assert not dataclasses.replace(model, rule=Rule("distance", threshold=0.1)).guarantee()[0]
