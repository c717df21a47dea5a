"""OpenSetClassifier: the whole method through scikit-learn's interface, on embeddings and on small images."""

import dataclasses
import doctest
import json
import os
import signal
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from pmal import OpenSetClassifier, pipeline
from pmal.data.decoding.decode import encode_png
from pmal.errors import DataError, Interrupted, UsageError
from pmal.estimator.checks import make_problem
from pmal.reporting.metrics import macro_f1

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROBLEM = make_problem()
NAMES = {2: "two", 3: "three", 5: "five", 7: "seven"}


def classifier(**options):
    return OpenSetClassifier(**{"encoder": "precomputed", "random_state": 0, "device": "cpu"} | options)


def shades(count, seed=0):
    """Dark, half-bright and bright images of 8 px, and their classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    noise = random.integers(0, 20, (count, 8, 8))
    noise[:, :4] += (labels == 1)[:, None, None] * 200
    noise[:, :, 4:] += (labels == 2)[:, None, None] * 200
    return noise.clip(0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(PROBLEM.X, PROBLEM.y)


@pytest.fixture(scope="module")
def fitted_text():
    return classifier().fit(PROBLEM.X, np.array([NAMES[label] for label in PROBLEM.y.tolist()]))


@pytest.fixture(scope="module")
def fitted_images():
    images, labels = shades(600)
    options = {"epochs": 2, "settings": {"data": {"flip": "no", "augmentation": "none"}}}
    return classifier(encoder="small", **options).fit(images, labels)


@pytest.fixture
def copied(fitted, tmp_path):
    """One that a test may change."""
    fitted.save(tmp_path / "copied")
    return OpenSetClassifier.load(tmp_path / "copied", device="cpu")


def test_it_is_a_classifier_of_scikit_learn():
    given = {"mining": {"epsilon": 0.5}}
    made = OpenSetClassifier(epochs=3, settings=given)
    assert is_classifier(made)
    assert made.get_params()["settings"] is given
    assert clone(made).get_params() == made.get_params()
    assert made.set_params(accept=0.9).accept == 0.9
    with pytest.raises(NotFittedError):
        made.predict(PROBLEM.X)
    with pytest.raises(NotFittedError):
        made.save("anywhere")


def test_parameters_can_be_searched():
    scores = cross_val_score(classifier(method="softmax"), PROBLEM.X, PROBLEM.y, cv=2, scoring="accuracy")
    assert scores.min() > 0.8


def test_a_higher_share_accepts_more():
    loose, strict = (classifier(method="softmax", accept=a).fit(PROBLEM.X, PROBLEM.y) for a in (0.95, 0.5))
    known, rejected = (
        [np.mean(c.predict(x) != -1) for c in (loose, strict)] for x in (PROBLEM.known, PROBLEM.unknown)
    )
    assert known[0] > known[1] + 0.05
    assert rejected[0] >= rejected[1]


def test_seeds(fitted):
    other = classifier(random_state=1).fit(PROBLEM.X, PROBLEM.y)
    assert not np.array_equal(other.unknown_score(PROBLEM.known), fitted.unknown_score(PROBLEM.known))
    drawn = [classifier(method="softmax", random_state=np.random.RandomState(7)) for _ in range(2)]
    first, second = (c.fit(PROBLEM.X, PROBLEM.y).unknown_score(PROBLEM.known) for c in drawn)
    assert np.array_equal(first, second)


def test_the_order_of_the_columns_of_predict_proba_is_that_of_classes(fitted):
    best = fitted.classes_[fitted.predict_proba(PROBLEM.known).argmax(axis=1)]
    assert np.mean(best == PROBLEM.truth) > 0.9


def test_text_labels_and_unknown(fitted, fitted_text):
    labels = fitted_text.predict(np.concatenate([PROBLEM.known, PROBLEM.unknown]))
    numbers = fitted.predict(np.concatenate([PROBLEM.known, PROBLEM.unknown]))
    assert labels.dtype == object
    # Classes in another order start from other weights, so the two need not agree everywhere.
    same = [a == NAMES.get(b, -1) for a, b in zip(labels.tolist(), numbers.tolist(), strict=True)]
    assert np.mean(same) > 0.9
    assert (labels == -1).any()


def test_explain(fitted):
    both = np.concatenate([PROBLEM.known[:2], PROBLEM.unknown[:1]])
    found = fitted.explain(both, top=2)
    json.dumps(found)
    assert [entry["label"] for entry in found] == fitted.predict(both).tolist()
    np.testing.assert_allclose([entry["score"] for entry in found], fitted.unknown_score(both))
    for entry, decision in zip(found, fitted.decision_function(both), strict=True):
        assert (entry["score"] <= entry["threshold"]) == entry["known"] == (decision > 0)
        assert entry["class"] == (entry["nearest"] if entry["known"] else "unknown")
        assert len(entry["prototypes"]) == 2
        weights = [prototype["weight"] for prototype in entry["prototypes"]]
        assert weights == sorted(weights, reverse=True)
        for prototype in entry["prototypes"]:
            assert prototype["file"] == f"X[{prototype['id']}]"
            assert prototype["class"] == str(PROBLEM.y[prototype["id"]]) == entry["nearest"]


def test_softmax_has_no_prototypes_and_its_own_default_score():
    found = classifier(method="softmax").fit(PROBLEM.X, PROBLEM.y)
    assert found.model_.rule.score == "logit"
    assert found.explain(PROBLEM.known[:1])[0]["prototypes"] == []
    with pytest.raises(UsageError, match=r"no prototypes.*method pmal"):
        found.add_class(PROBLEM.unknown, 11)


def test_calibrate_with_unknowns_finds_the_best_macro_f1(copied):
    X, y = np.concatenate([PROBLEM.known, PROBLEM.unknown]), np.append(PROBLEM.truth, [-1] * 100)

    def quality():
        return float(macro_f1(torch.from_numpy(y), torch.from_numpy(copied.predict(X))))

    before = quality()
    assert copied.calibrate(X, y) is copied
    best = quality()
    assert best >= before
    value = copied.model_.rule.threshold
    for other in (0.8 * value, 1.2 * value):
        rule = dataclasses.replace(copied.model_.rule, threshold=other)
        copied.model_ = dataclasses.replace(copied.model_, rule=rule)
        assert quality() <= best


def test_calibrate_without_unknowns_keeps_the_promise(copied):
    copied.calibrate(PROBLEM.known)
    accepted = np.mean(copied.predict(PROBLEM.known) != -1)
    assert 0.95 <= accepted < 0.98
    copied.calibrate(PROBLEM.known, PROBLEM.truth)
    assert np.mean(copied.predict(PROBLEM.known) != -1) == accepted
    with pytest.raises(DataError, match=r"y\[0\] is 4, no class of this model: write -1"):
        copied.calibrate(PROBLEM.known[:2], [4, 2])
    with pytest.warns(UserWarning, match="nothing will be rejected: no guarantee: accept=0.95 needs 19"):
        copied.calibrate(PROBLEM.known[:5])


def test_a_classifier_without_held_out_samples_can_be_calibrated_later():
    found = classifier(method="softmax", held_out=0.0).fit(PROBLEM.X, PROBLEM.y)
    assert found.unknown_score(PROBLEM.known).shape == (160,)
    with pytest.raises(UsageError, match="has no threshold"):
        found.predict(PROBLEM.known)
    assert (found.calibrate(PROBLEM.known).predict(PROBLEM.unknown) == -1).mean() > 0.5


def test_too_few_samples_for_a_threshold_are_said():
    chosen = np.concatenate([np.flatnonzero(PROBLEM.y == label)[:9] for label in (2, 3)])
    two_each = chosen[[0, 1, 9, 10]]
    with pytest.warns(
        UserWarning, match="no samples were held out, so there is no threshold: raise held_out"
    ):
        classifier(method="softmax", held_out=0.05).fit(PROBLEM.X[two_each], PROBLEM.y[two_each])
    with pytest.warns(UserWarning, match="needs 19 known samples, not 6: raise held_out, lower accept"):
        classifier(method="softmax", held_out=0.05).fit(PROBLEM.X[chosen], PROBLEM.y[chosen])


def test_add_class(copied, tmp_path):
    new = np.random.default_rng(5).normal(size=(100, 12)) + 7 * np.eye(12)[6]
    # The score that decides about added classes decides before, too: what changes is the new class's doing.
    rule = dataclasses.replace(copied.model_.rule, score="distance")
    copied.model_ = dataclasses.replace(copied.model_, rule=rule)
    before = copied.predict(PROBLEM.known)
    effect = copied.add_class(new[:50], 11)
    assert copied.classes_.tolist() == [2, 3, 5, 7, 11]
    assert np.mean(copied.predict(new[50:]) == 11) > 0.7
    after = copied.predict(PROBLEM.known)
    moved = after != before
    assert set(after[moved].tolist()) <= {11}
    assert (effect.held_out, effect.seen) == (len(PROBLEM.y), True)
    assert abs(effect.captured / effect.held_out - np.mean(after == 11)) < 0.1
    assert effect.accuracy_before >= effect.accuracy_after > 0.8
    shown = copied.explain(new[60:61])[0]
    assert (shown["label"], shown["prototypes"][0]["class"]) == (11, "11")
    assert shown["prototypes"][0]["file"].startswith("11[")
    copied.save(tmp_path / "five")
    again = OpenSetClassifier.load(tmp_path / "five", device="cpu")
    assert again.classes_.tolist() == copied.classes_.tolist()
    assert np.array_equal(again.predict(new), copied.predict(new))
    assert again.add_class(-new, 13).captured == copied.add_class(-new, 13).captured
    with pytest.raises(DataError, match="class 2 exists already"):
        copied.add_class(new, 2)


@pytest.mark.parametrize("count", [1, 2])
def test_probabilities_of_added_classes(copied, count):
    far = [np.random.default_rng(k).normal(size=(60, 12)) + 7 * np.eye(12)[6 + k] for k in range(count)]
    trained = copied.predict_proba(PROBLEM.known)
    for k, samples in enumerate(far):
        copied.add_class(samples[:40], 11 + k)
    X = np.concatenate([PROBLEM.known, PROBLEM.unknown, *far])
    found = copied.predict_proba(X)
    assert found.shape == (len(X), len(copied.classes_))
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert (found >= 0).all()
    copied.model_ = dataclasses.replace(
        copied.model_, rule=dataclasses.replace(copied.model_.rule, threshold=np.inf)
    )
    named = copied.predict(X)
    assert {11, 11 + count - 1} <= set(named.tolist())
    assert np.array_equal(copied.classes_[found.argmax(axis=1)], named)
    # Among themselves, the trained classes keep their shares.
    shares = found[: len(trained), :4] / found[: len(trained), :4].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, trained, atol=1e-6)


@pytest.mark.parametrize(
    ("score", "after", "said"),
    [
        ("energy", "distance", "the rule changed from energy to distance"),
        ("neighbors", "neighbors", ""),
        ("distance", "distance", ""),
        (
            "combined",
            "combined",
            "from combined of distance, neighbors, logit, with typicality to combined of distance, ",
        ),
    ],
)
def test_add_class_keeps_the_rule_or_says_that_it_changed(copied, tmp_path, score, after, said):
    new = np.random.default_rng(5).normal(size=(100, 12)) + 7 * np.eye(12)[6]
    copied.set_params(reject_by=score)
    effect = copied.add_class(new[:50], 11)
    assert effect.rule_changed == bool(said)
    assert said in str(effect)
    assert said or "rule" not in str(effect)
    assert (copied.model_.rule.score, copied.reject_by) == (after, after)
    assert np.mean(copied.predict(new[50:]) == 11) > 0.7
    assert np.mean(copied.predict(PROBLEM.known) == PROBLEM.truth) > 0.85
    assert np.mean(copied.predict(-new) == -1) > 0.5
    with pytest.raises(UsageError, match=r"unknown score of this model 'logit':.* Valid: distance, "):
        copied.set_params(reject_by="logit")
    copied.save(tmp_path / "saved")
    again = OpenSetClassifier.load(tmp_path / "saved", device="cpu")
    assert (again.reject_by, again.model_.rule) == (after, copied.model_.rule)
    assert np.array_equal(again.predict(new), copied.predict(new))
    assert not copied.add_class(-new, 12).rule_changed
    assert copied.calibrate(PROBLEM.known).model_.rule.score == after


def accepted(model):
    return np.mean(model.predict(PROBLEM.known) != -1)


def test_a_fitted_classifier_follows_a_change_of_its_rule(copied):
    fitted_once = copied.model_.classifier
    before = accepted(copied)
    assert copied.set_params(accept=0.5) is copied
    assert accepted(copied) < before - 0.2
    copied.accept = 0.95
    assert accepted(copied) == before
    energy = copied.model_.scores(*copied._embed(PROBLEM.known))["energy"].numpy()
    copied.set_params(reject_by="energy", per_class_threshold=True)
    assert np.array_equal(copied.unknown_score(PROBLEM.known), energy)
    assert (copied.model_.rule.per_class, copied.get_params()["reject_by"]) == (True, "energy")
    copied.per_class_threshold = False
    assert len(set(copied.model_.limits().tolist())) == 1
    copied.set_params(reject_by="auto")
    assert (copied.reject_by, copied.model_.rule.score) == ("auto", "combined")
    assert accepted(copied) == before
    assert copied.model_.classifier is fitted_once


def test_a_rule_that_the_fitted_model_cannot_follow_is_refused_as_a_whole(copied):
    params, rule = copied.get_params(), copied.model_.rule
    for wrong, message in (
        (
            {"reject_by": "openmax"},
            "unknown score of this model 'openmax':.*Valid: probability, logit, energy, ",
        ),
        ({"accept": 1.0}, "accept = 1.0: must be"),
        ({"accept": "most"}, "accept"),
        ({"per_class_threshold": 3}, "per_class"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            copied.set_params(**{"epochs": 7, "accept": 0.7} | wrong)
        assert "\n" not in str(caught.value)
        with pytest.raises(UsageError, match=message):
            setattr(copied, *next(iter(wrong.items())))
    assert copied.get_params() == params
    assert copied.model_.rule is rule
    with pytest.raises(ValueError, match="Invalid parameter 'scores'"):
        copied.set_params(scores="logit")


def test_options_that_need_training_wait_for_the_next_fit(copied):
    before, labels = copied.model_, copied.predict(PROBLEM.known)
    copied.set_params(epochs=1, method="softmax", held_out=0.3)
    assert copied.model_ is before
    assert np.array_equal(copied.predict(PROBLEM.known), labels)
    assert copied.fit(PROBLEM.X, PROBLEM.y).model_.reference is None
    with pytest.raises(UsageError, match="unknown score of this model 'distance'"):
        copied.set_params(reject_by="distance")
    assert copied.set_params(reject_by="auto").model_.rule.score == "logit"


def test_a_threshold_that_calibrate_found_gives_way_to_what_is_asked_for(copied):
    before = accepted(copied)
    X, y = np.concatenate([PROBLEM.known, PROBLEM.unknown]), np.append(PROBLEM.truth, [-1] * 100)
    found = copied.calibrate(X, y).model_.rule.threshold
    assert copied.set_params(epochs=3).model_.rule.threshold == found
    assert copied.set_params(accept=0.95).model_.rule.threshold is None
    assert accepted(copied) == before
    with pytest.warns(UserWarning, match="nothing will be rejected: no guarantee: accept=0.999 needs 999"):
        copied.set_params(accept=0.999)


def test_an_added_class_can_have_its_own_threshold():
    new, held, test = PROBLEM.unknown[:40], PROBLEM.unknown[40:70], PROBLEM.unknown[70:]
    found = classifier(reject_by="distance", per_class_threshold=True).fit(PROBLEM.X, PROBLEM.y)
    found.add_class(new, 11)
    pooled = found.model_.calibration.threshold("distance", 0.95).value
    assert found.model_.limits()[-1] == pooled  # for want of samples
    before = np.mean(found.predict(test) == 11)
    found.calibrate(np.concatenate([PROBLEM.known, held]), np.append(PROBLEM.truth, [11] * len(held)))
    limits = found.model_.limits()
    assert limits[-1] > limits[:-1].max()
    assert np.mean(found.predict(test) == 11) >= max(0.8, before)


def test_images_of_any_layout_and_as_files(fitted_images, tmp_path):
    images, labels = shades(60, seed=1)
    found = fitted_images.predict(images)
    assert np.mean(found == labels) > 0.8
    assert np.array_equal(fitted_images.unknown_score(images[..., None]), fitted_images.unknown_score(images))
    color, large = np.stack([images] * 3, axis=3), images.repeat(2, axis=1).repeat(2, axis=2)
    assert np.mean(fitted_images.predict(color) == found) > 0.9
    nearest = [fitted_images.predict_proba(x).argmax(axis=1) for x in (images, large)]
    assert np.mean(nearest[0] == nearest[1]) > 0.9
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path, image in zip(paths, images, strict=False):
        path.write_bytes(encode_png(image[:, :, None]))
    np.testing.assert_allclose(
        fitted_images.unknown_score(paths), fitted_images.unknown_score(images[:6]), rtol=1e-3
    )
    assert fitted_images.explain([str(paths[2])])[0]["image"] == str(paths[2])
    with pytest.raises(DataError, match=r"nowhere\.png: cannot be read"):
        fitted_images.predict([tmp_path / "nowhere.png"])
    with pytest.raises(DataError, match=r"uint8 pixels, from 0 to 1 as"):
        fitted_images.predict(images / 255)
    assert fitted_images.model_.pictures.shape == (30, 1, 8, 8)
    assert not hasattr(fitted_images, "n_features_in_")


def test_a_folder_is_divided_as_the_command_line_divides_it(tmp_path):
    images, labels = shades(300)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = tmp_path / "photos" / f"class {label}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(image[:, :, None]))
    for i in range(9):
        (tmp_path / "photos" / "class 0" / f"bad{i}.png").write_bytes(b"no image")
    made = classifier(encoder="small", method="softmax", epochs=1)
    with pytest.warns(UserWarning, match=r"images cannot be read and were left out \(first: .*bad\d.png"):
        made.fit(tmp_path / "photos", out=tmp_path / "run")
    assert made.classes_.tolist() == ["class 0", "class 1", "class 2"]
    listed = json.loads((tmp_path / "run" / "quarantine.json").read_text())
    assert set(listed) == {"train", "held out"}
    assert sum(part["total"] for part in listed.values()) == 309 - (21 + 20 + 20)  # without a fifth per class
    loaded = OpenSetClassifier.load(tmp_path / "run", device="cpu")
    assert (loaded.method, loaded.encoder, loaded.reject_by) == ("softmax", "small", "logit")
    assert np.array_equal(loaded.predict(images), made.predict(images))


def test_nothing_is_left_behind_and_a_named_folder_can_be_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = classifier(method="softmax").fit(PROBLEM.X, PROBLEM.y)
    assert not os.listdir(tmp_path)
    named = classifier(method="softmax", random_state=None)
    first = named.fit(PROBLEM.X, PROBLEM.y, out=tmp_path / "run").unknown_score(PROBLEM.known)
    log = (tmp_path / "run" / "log.jsonl").read_text()
    second = named.fit(PROBLEM.X, PROBLEM.y, out=tmp_path / "run").unknown_score(PROBLEM.known)
    assert np.array_equal(first, second)
    assert (tmp_path / "run" / "log.jsonl").read_text() == log
    with pytest.raises(UsageError, match="was started with seed"):
        made.fit(PROBLEM.X, PROBLEM.y, out=tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"]


def test_an_interruption_without_a_folder_is_a_keyboard_interrupt(monkeypatch, tmp_path):
    def interrupted(*args, **kwargs):
        raise Interrupted(signal.SIGINT, "go on with the same command")

    monkeypatch.setattr(pipeline, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier().fit(PROBLEM.X, PROBLEM.y)
    with pytest.raises(Interrupted):
        classifier().fit(PROBLEM.X, PROBLEM.y, out=tmp_path / "run")


def test_it_is_silent_unless_asked(capsys):
    classifier(method="softmax").fit(PROBLEM.X, PROBLEM.y)
    assert capsys.readouterr() == ("", "")
    classifier(method="softmax", verbose=True).fit(PROBLEM.X, PROBLEM.y)
    assert "classifier 0" in capsys.readouterr().err


def test_options_are_the_settings_of_a_run(tmp_path):
    options = {"prototypes_per_class": 3, "per_class_threshold": True, "epochs": np.int64(2), "accept": 0.6}
    made = classifier(settings={"optimization": {"margin": 0.8}}, **options)
    made.fit(PROBLEM.X, PROBLEM.y, out=tmp_path / "run")
    assert made.model_.rule.per_class
    assert made.model_.reference.mask_KT.shape == (4, 3)
    text = (tmp_path / "run" / "config.toml").read_text()
    assert "margin = 0.8" in text
    assert "epochs = 2\n" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"settings": {"rejection": {"score": "logit"}}},
            "settings: rejection.score has its own place: use reject_by",
        ),
        ({"settings": {"seed": 3}}, "use random_state"),
        ({"settings": {"mining": {"epsilom": 1}}}, "did you mean 'mining.epsilon'"),
        ({"method": "pmla"}, "unknown method 'pmla': did you mean 'pmal'"),
        ({"reject_by": "distanse"}, "did you mean 'distance'"),
        ({"recipe": "standard"}, "embeddings take 'none'"),
        ({"random_state": -1}, "random_state is -1: use 0 or more"),
        ({"held_out": 1.0}, "held_out = 1.0: must be"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_wrong_options_are_named_before_any_work(options, message):
    with pytest.raises(UsageError, match=message):
        classifier(**options).fit(PROBLEM.X, PROBLEM.y)


def test_wrong_data_are_named(fitted):
    with pytest.raises(UsageError, match=r"fit\(X, y\) requires y to be passed"):
        classifier().fit(PROBLEM.X)
    with pytest.raises(UsageError, match="takes embeddings, not images of 28 px"):
        classifier().fit("sample")
    with pytest.raises(ValueError, match="X has 11 features, but OpenSetClassifier is expecting 12 features"):
        fitted.predict(PROBLEM.X[:, 1:])
    with pytest.raises(DataError, match=r"X\[0\] has NaN"):
        fitted.predict(np.full((1, 12), np.nan))
    with pytest.raises(UsageError, match="encoder 'oscri' takes images, and X has rows of numbers"):
        OpenSetClassifier(encoder="oscri").fit(PROBLEM.X, PROBLEM.y)


def test_save_overwrites_a_classifier_and_nothing_else(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    fitted.save(tmp_path / "model")
    assert OpenSetClassifier.load(tmp_path / "model").get_params()["random_state"] == 0
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.png").touch()
    with pytest.raises(UsageError, match="photos is not empty and holds no classifier"):
        fitted.save(tmp_path / "photos")
    record = tmp_path / "model" / "estimator.json"
    for text in ('{"params": {}, "integers": true, "classes": ["2"]}', '{"params": {"x": 1}}', "[]"):
        record.write_text(text)
        with pytest.raises(DataError, match="does not belong to the model next to it"):
            OpenSetClassifier.load(tmp_path / "model")
    with pytest.raises(DataError, match="no such folder"):
        OpenSetClassifier.load(tmp_path / "nowhere")


def test_the_examples_of_the_documentation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = doctest.testfile(str(ROOT / "docs" / "estimator.md"), module_relative=False)
    assert found.attempted > 10
    assert not found.failed


def test_p_values_say_what_predict_says(fitted):
    for samples in (PROBLEM.known, PROBLEM.unknown):
        p_values = fitted.p_values(samples)
        assert ((p_values > 0) & (p_values <= 1)).all()
        assert ((p_values <= 0.05) == (fitted.predict(samples) == -1)).all()
    assert np.median(fitted.p_values(PROBLEM.unknown)) < np.median(fitted.p_values(PROBLEM.known))


def test_of_those_called_unknown_a_bounded_share_is_known(fitted):
    both = np.concatenate([PROBLEM.known, PROBLEM.unknown])
    few, many = (fitted.predict(both, fdr=fdr) == -1 for fdr in (0.05, 0.5))
    assert (few <= many).all()
    assert many.any()
    share = few[: len(PROBLEM.known)].sum() / max(few.sum(), 1)
    assert share < 0.15
    accepted = ~many
    assert (fitted.predict(both, fdr=0.5)[accepted] >= 0).all()
    with pytest.raises(UsageError, match="fdr is 2"):
        fitted.predict(both, fdr=2)
    with pytest.raises(UsageError, match=r"nothing could be called unknown: pass .* or more"):
        fitted.predict(both, fdr=1e-4)


def test_without_held_out_samples_there_are_no_p_values():
    bare = classifier(method="softmax", held_out=0).fit(PROBLEM.X, PROBLEM.y)
    bare.model_ = dataclasses.replace(bare.model_, rule=dataclasses.replace(bare.model_.rule, threshold=0.0))
    with pytest.raises(UsageError, match="p-values need held-out samples"):
        bare.p_values(PROBLEM.known)


def test_images_unlike_all_others_are_unknown(fitted_images):
    noise = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    assert (fitted_images.predict(noise) == -1).all()
    assert (fitted_images.decision_function(noise) <= 0).all()
    words = {entry["because"] for entry in fitted_images.explain(noise)}
    assert words == {"unlike any training image, whatever class it is near to"}


def test_a_second_fit_may_be_on_samples_of_another_kind():
    rows, images = PROBLEM.X[::8], np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    options = {"random_state": 0, "device": "cpu", "method": "softmax", "epochs": 1, "held_out": 0}
    model = OpenSetClassifier(**options).fit(rows, PROBLEM.y[::8])
    assert model.model_.classifier.spec.image_size == 1
    assert model.fit(images, np.arange(40) % 2).model_.classifier.spec.image_size == 8
