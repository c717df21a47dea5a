"""What the service says of a model: enough to decide anew at any acceptance rate."""

import dataclasses
import json

import pytest
import torch

from pmal.errors import DataError, UsageError
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from pmal.rejection.new_class import add_class
from pmal.serving.answers.answering import with_rule
from pmal.serving.http.served_model import RATES, model_loader
from pmal.serving.onnx.exporting import describe_header
from tests.serving.http_service import serve_model
from tests.serving.tiny_model import CLASSES, make_model, pictures_of

pytestmark = pytest.mark.slow


def with_added_class():
    model = make_model()
    images = pictures_of(3, 6)
    z_ND = model.classifier.embed(images)[0].detach()
    return add_class(model, "noise", z_ND, images, [f"n{i}.png" for i in range(6)])[0]


MODELS = {
    "pmal": make_model,
    "softmax": lambda: make_model(Rule("logit"), prototypes=False),
    "per class": lambda: make_model(Rule("distance", 0.8, per_class=True)),
    "combined": lambda: make_model(Rule("combined", 0.6)),
    "by hand": lambda: make_model(Rule("energy", threshold=-1.0)),
    "not calibrated": lambda: make_model(Rule("distance", threshold=0.5), calibrated=False),
    "added class": with_added_class,
    "no gallery": lambda: dataclasses.replace(make_model(), gallery=(), pictures=None),
    "accepts all": lambda: make_model(Rule("logit", 0.999), prototypes=False),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_answers_and_describes_itself(kind):
    served = serve_model(MODELS[kind]())
    about = json.loads(json.dumps(served.about, allow_nan=False))
    assert [entry["name"] for entry in about["classes"]][:3] == list(CLASSES)
    asked = [(image, f"{i}.png", 3) for i, image in enumerate(pictures_of(0, 3).numpy())]
    answers = served.answer(asked)
    assert [answer["image"] for answer in answers] == ["0.png", "1.png", "2.png"]
    json.dumps(answers, allow_nan=False)
    for answer in answers:
        for prototype in answer["prototypes"]:
            assert (prototype["picture"] is None) == (served.model.pictures is None)


@pytest.mark.parametrize("kind", ["pmal", "softmax", "per class", "combined", "by hand", "added class"])
def test_thresholds_of_every_rate_are_those_that_predict_would_use(kind):
    model = MODELS[kind]()
    acceptance = serve_model(model).about["acceptance"]
    assert acceptance["rates"] == sorted({*RATES, model.rule.accept})
    assert acceptance["per_class"] == (kind == "per class")
    for i in (0, 20, len(acceptance["rates"]) - 1):
        limits = with_rule(model, accept=acceptance["rates"][i]).limits().tolist()
        found = [float(column[i]) for column in acceptance["thresholds"]]
        assert found == (limits if kind == "per class" else limits[:1])


@pytest.mark.parametrize("kind", ["pmal", "per class", "combined", "by hand"])
def test_the_promise_of_every_rate_is_the_one_that_predict_would_print(kind):
    model = MODELS[kind]()
    acceptance = serve_model(model).about["acceptance"]
    notes = [with_rule(model, accept=rate).guarantee()[1] for rate in acceptance["rates"]]
    assert acceptance["notes"] == notes
    assert sum("90 % range" in note for note in notes) > 20


@pytest.mark.parametrize("kind", ["pmal", "softmax", "per class", "combined", "by hand", "added class"])
def test_another_score_decides_as_predict_would_by_it(kind):
    model = MODELS[kind]()
    served = serve_model(model)
    image = pictures_of(0, 1)[0].numpy()
    assert len(served.scores) > 1
    for score in served.scores:
        other = served.deciding_by(score)
        (answer,) = other.answer([(image, "a.png", 1)])
        (expected,) = serve_model(with_rule(model, score=score)).answer([(image, "a.png", 1)])
        assert answer == expected
        assert (other.about["score"], other.header["score"]) == (score, score)
        assert served.deciding_by(score) is other, "only images of one model share a batch"
    assert served.deciding_by(None) is served.deciding_by(model.rule.score) is served


def test_a_score_without_a_threshold_cannot_decide():
    assert serve_model(MODELS["not calibrated"]()).scores == ("distance",)
    assert "distance" not in serve_model(MODELS["softmax"]()).scores
    model = make_model()
    broken = {**model.calibration.scores, "energy": torch.full((60,), float("nan"))}
    model = dataclasses.replace(model, calibration=dataclasses.replace(model.calibration, scores=broken))
    served = serve_model(model)
    assert "energy" not in served.scores
    assert served.about["scores"] == list(served.scores)
    with pytest.raises(UsageError, match="unknown score of this model 'energy'"):
        served.deciding_by("energy")


def test_a_batch_is_as_small_as_the_most_delicate_score_needs(tmp_path, monkeypatch):
    save_model(tmp_path / "model", make_model())
    sizes = {"neighbors": 1}
    monkeypatch.setattr(
        "pmal.serving.http.served_model.batch_size", lambda model, wanted: sizes.get(model.rule.score, 8)
    )
    assert model_loader(tmp_path / "model", torch.device("cpu"))().batch == 1


def with_far_files():
    model = make_model()
    gallery = tuple(
        tuple(dataclasses.replace(p, file=f"/home/somebody/photos/{p.file}") for p in ranked)
        for ranked in model.gallery
    )
    return dataclasses.replace(model, gallery=gallery)


def test_nobody_is_told_where_the_training_images_lie():
    model = with_far_files()
    (answer,) = serve_model(model).answer([(pictures_of(0, 1)[0].numpy(), "a.png", 3)])
    assert {prototype["file"].count("/") for prototype in answer["prototypes"]} == {1}
    assert "somebody" not in json.dumps(answer)
    assert "somebody" not in json.dumps(describe_header(model).to_metadata())


def test_no_calibration_no_other_rates():
    about = serve_model(MODELS["not calibrated"]()).about
    assert about["acceptance"] is about["known_scores"] is about["accept"] is None


def test_known_scores_are_all_counted():
    model = make_model()
    shown = serve_model(model).about["known_scores"]
    assert sum(shown["counts"]) == len(model.calibration.predictions)
    assert shown["low"] == float(model.calibration.scores["distance"].min())


def test_pictures_of_an_added_class_are_its_own():
    served = serve_model(with_added_class())
    about = served.about["classes"][3]
    assert (about["name"], about["added"], about["prototypes"]) == (
        "noise",
        True,
        len(served.model.gallery[3]),
    )
    image = served.decode(served.picture("f" * 16, 3, 0), 10_000)
    assert (image == served.model.pictures[9].numpy()).all()
    assert served.picture("f" * 16, 4, 0) is None


def test_the_loader_reads_the_bundle_as_it_is_now(tmp_path):
    save_model(tmp_path / "run" / "model", make_model())
    load = model_loader(tmp_path / "run", torch.device("cpu"), accept=0.5)
    first = load()
    assert (first.name, first.header["accept"]) == ("run", 0.5)
    save_model(tmp_path / "run" / "model", make_model(Rule("logit"), prototypes=False))
    second = load()
    assert second.fingerprint != first.fingerprint
    with pytest.raises(UsageError, match="unknown score of this model"):
        model_loader(tmp_path / "run", torch.device("cpu"), score="distanse")()


def test_a_model_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    save_model(tmp_path / "model", make_model())
    seen = iter(["a" * 64, "b" * 64])
    described = "pmal.serving.http.served_model.describe_model"
    monkeypatch.setattr(described, lambda _: {"fingerprint": next(seen)})
    with pytest.raises(DataError, match="another model was saved while this one was read"):
        model_loader(tmp_path / "model", torch.device("cpu"))()


def test_scores_that_are_all_the_same_have_no_histogram():
    model = make_model(Rule("logit"), prototypes=False)
    same = {name: torch.full_like(values, 0.5) for name, values in model.calibration.scores.items()}
    model = dataclasses.replace(model, calibration=dataclasses.replace(model.calibration, scores=same))
    assert serve_model(model).about["known_scores"] is None
