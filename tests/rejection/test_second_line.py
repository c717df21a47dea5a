"""Near score and typicality together: one decision, one promise, and what becomes of them in files."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from pmal.config import EncoderConfig
from pmal.data.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.errors import DataError
from pmal.rejection.calibration import Calibration
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.typicality import TYPICALITY, fit_typicality
from pmal.serving.bundle import load_model, save_model
from tests.rejection.test_typicality import CPU, smooth_images

NAMES = ("ant", "bee")
NOISE = torch.randint(0, 256, (50, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_model(held_out=400, rule=None):
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), NAMES, 12, 1)).eval()
    typicality = fit_typicality(network, ResidentImages(smooth_images(600, seed=1), CPU))
    model = OpenSetModel(network, NAMES, rule or Rule("logit", 0.9), typicality=typicality)
    images = ResidentImages(smooth_images(held_out, seed=2), CPU)
    z, logits, far = embed_images(network, images, embed=model.embed_batch)
    return dataclasses.replace(
        model, calibration=Calibration.fit(model.scores(z, logits, far), logits.argmax(dim=1))
    )


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_noise_is_unknown_by_its_typicality_and_known_images_are_accepted_as_promised(model):
    answers = model.answer(NOISE)
    assert (answers.labels == -1).all()
    assert (answers.far > answers.far_limits).all()
    near_alone = dataclasses.replace(model, typicality=None)
    assert (near_alone.answer(NOISE).labels >= 0).any(), "the near score lets noise pass"
    known = model.answer(smooth_images(2000, seed=3))
    assert abs((known.labels >= 0).double().mean() - 0.9) < 0.04


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("held_out", [30, 100, 400])
def test_a_p_value_of_at_most_one_minus_accept_is_unknown_and_no_other(held_out, per_class):
    model = make_model(held_out, Rule("logit", 0.9, per_class))
    for images in (smooth_images(300, seed=3), NOISE, 255 - smooth_images(50, seed=4)):
        answers = model.answer(images)
        assert ((answers.p_values <= 0.1) == (answers.labels == -1)).all()
        assert ((answers.p_values > 0) & (answers.p_values <= 1)).all()


def test_either_score_rejects_and_an_embedding_alone_is_judged_by_the_near_one(model):
    images = smooth_images(40, seed=5)
    z, logits, far = model.embed(images)
    whole = model.answer_embedded(z, logits, far)
    torch.testing.assert_close(whole.labels, model.answer(images).labels)
    near = model.answer_embedded(z, logits)
    assert ((near.labels == -1) <= (whole.labels == -1)).all()
    far_away = model.answer_embedded(z, logits, torch.full_like(far, math.inf))
    assert (far_away.labels == -1).all()
    assert (model.answer_embedded(z, logits, torch.full_like(far, math.nan)).labels == -1).all()


def test_few_held_out_images_reject_what_is_beyond_all_of_them_and_say_so():
    model = make_model(12)
    assert model.budget.near == 0.1
    assert model.far_limit() == model.calibration.scores[TYPICALITY].max()
    assert (model.answer(NOISE).labels == -1).all()
    assert "unlike all held-out images is rejected, too, at most 7.7 % of known ones" in model.guarantee()[1]


def test_without_held_out_images_nothing_is_said_about_typicality(model):
    rule = Rule("logit", threshold=0.0)
    bare = dataclasses.replace(model, calibration=None, rule=rule)
    answers = bare.answer(NOISE)
    assert (answers.far_limits == math.inf).all()
    assert answers.p_values.isnan().all()


def test_the_bundle_keeps_it_and_refuses_what_does_not_belong_to_it(model, tmp_path):
    save_model(tmp_path / "m", model)
    again = load_model(tmp_path / "m", CPU)
    before, after = (one.answer(NOISE) for one in (model, again))
    for field in dataclasses.fields(before):
        assert torch.equal(getattr(before, field.name), getattr(after, field.name)), field.name
    layers = model.typicality.layers()
    for change, reason in (
        (lambda mean, whitening: (mean[:-1], whitening), "whitening_0 is"),
        (lambda mean, whitening: (mean * math.nan, whitening), "NaN or infinite"),
        (lambda mean, whitening: (mean.double(), whitening), "mean_0 is"),
    ):
        name = next(iter(layers))
        wrong = type(model.typicality)(layers | {name: change(*layers[name])})
        with pytest.raises(DataError, match=reason):
            save_model(tmp_path / "wrong", dataclasses.replace(model, typicality=wrong))
    renamed = type(model.typicality)({f"x.{name}": layer for name, layer in layers.items()})
    with pytest.raises(DataError, match="layers are not those of its network"):
        save_model(tmp_path / "wrong", dataclasses.replace(model, typicality=renamed))


def test_a_model_that_does_not_look_at_layers_is_saved_and_answers(model, tmp_path):
    scores = {name: s for name, s in model.calibration.scores.items() if name != TYPICALITY}
    plain = dataclasses.replace(
        model, typicality=None, calibration=dataclasses.replace(model.calibration, scores=scores)
    )
    save_model(tmp_path / "m", plain)
    again = load_model(tmp_path / "m", CPU)
    assert again.typicality is None
    assert again.budget.far == 0
    assert not (tmp_path / "m" / "typicality.safetensors").exists()


def test_the_near_score_pays_no_more_than_its_share(model):
    assert (model.budget.near, model.budget.far) == (0.07, 0.03)
    expected = np.quantile(model.calibration.scores["logit"].numpy(), 0.93, method="higher")
    assert model.limits()[0].item() == pytest.approx(expected, abs=0.05)
