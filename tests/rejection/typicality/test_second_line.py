"""Near score and typicality together: one decision, one promise, and what becomes of them in files."""

import copy
import dataclasses
import math

import pytest
import torch

from pmal.errors import DataError
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.model import Rule
from pmal.rejection.typicality.of_layers import TYPICALITY
from tests.rejection.typicality.blobs import CPU, smooth_images
from tests.rejection.typicality.model_of_blobs import NOISE, make_model


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("count", [1, 50, 3000])
def test_a_gpu_sees_the_same_typicality_in_full_and_half_precision(model, count):
    gpu = dataclasses.replace(model, classifier=copy.deepcopy(model.classifier).to("cuda"))
    half = gpu.in_half_precision()
    for images in (smooth_images(count, seed=3), NOISE[:count]):
        for _ in range(3):  # the first answers of a size come before its step is captured
            expected, full, fast = model.answer(images), gpu.answer(images), half.answer(images)
        torch.testing.assert_close(full.far, expected.far, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(fast.far, expected.far, rtol=3e-2, atol=3e-2)
        assert (full.labels == expected.labels).double().mean() >= 0.99
    assert (full.labels == -1).all()
    assert (fast.labels == -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("held_out", [30, 100, 400])
def test_a_p_value_of_at_most_one_minus_accept_is_unknown_and_no_other(held_out, per_class):
    model = make_model(held_out, Rule("logit", 0.9, per_class))
    for images in (smooth_images(300, seed=3), NOISE, 255 - smooth_images(50, seed=4)):
        answers = model.answer(images)
        assert ((answers.p_values <= 0.1) == (answers.labels == -1)).all()
        assert ((answers.p_values > 0) & (answers.p_values <= 1)).all()


def test_typicality_only_adds_and_an_embedding_alone_is_judged_by_the_near_score(model):
    images = smooth_images(40, seed=5)
    z, logits, far = model.embed(images)
    whole = model.answer_embedded(z, logits, far)
    torch.testing.assert_close(whole.labels, model.answer(images).labels)
    near = model.answer_embedded(z, logits)
    assert ((near.labels == -1) <= (whole.labels == -1)).all()
    assert (whole.score >= near.score).all()
    torch.testing.assert_close(near.score, model.scores(z, logits)["logit"])
    torch.testing.assert_close(model.scores(z, logits, far)["decision"], whole.score)
    far_away = model.answer_embedded(z, logits, torch.full_like(far, math.inf))
    assert (far_away.labels == -1).all()
    assert (model.answer_embedded(z, logits, torch.full_like(far, math.nan)).labels == -1).all()


def test_few_held_out_images_reject_noise_and_promise_the_same():
    model = make_model(12)
    assert (model.answer(NOISE).labels == -1).all()
    assert model.guarantee()[1].startswith("accepts at least 90 % of known images on average")


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
    state, names = model.typicality.state_dict(), model.typicality.names

    def saved(state, names=names):
        kinds = ("usual", "mean", "directions")
        layers = {name: tuple(state[f"{kind}_{i}"] for kind in kinds) for i, name in enumerate(names)}
        wrong = type(model.typicality)(layers, state["whitening"])
        save_model(tmp_path / "wrong", dataclasses.replace(model, typicality=wrong))

    for name, change, reason in (
        ("mean_0", lambda mean: mean[:-2], "usual_0 is"),
        ("usual_0", lambda usual: usual[:-1], "usual_0 is"),
        ("directions_0", lambda directions: directions[:-1], "directions_0 is"),
        ("mean_0", lambda mean: mean * math.nan, "NaN or infinite"),
        ("mean_0", lambda mean: mean.double(), "mean_0 is"),
        ("whitening", lambda whitening: whitening[1:], "whitening is"),
    ):
        with pytest.raises(DataError, match=reason):
            saved(state | {name: change(state[name])})
    with pytest.raises(DataError, match="layers are not those of its network"):
        saved(state, [f"x.{name}" for name in names])


def test_a_model_that_does_not_look_at_layers_is_saved_and_answers(model, tmp_path):
    scores = {name: s for name, s in model.calibration.scores.items() if name != TYPICALITY}
    plain = dataclasses.replace(
        model, typicality=None, calibration=dataclasses.replace(model.calibration, scores=scores)
    )
    save_model(tmp_path / "m", plain)
    again = load_model(tmp_path / "m", CPU)
    assert again.typicality is None
    assert again.penalty is None
    assert not (tmp_path / "m" / "typicality.safetensors").exists()
