"""What users of scikit-learn try: pipelines, tables, kinds of labels, novelty detection, calibration."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import classification_report, get_scorer, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmal import OpenSetClassifier, auroc
from pmal.errors import DataError, UsageError
from pmal.estimator.checks import make_problem

PROBLEM = make_problem()
BOTH = np.concatenate([PROBLEM.known, PROBLEM.unknown])
NAMES = {2: "two", 3: "three", 5: "five", 7: "seven"}


def classifier(**options):
    quick = {"method": "softmax", "epochs": 5, "held_out": 0.1, "random_state": 0, "device": "cpu"}
    return OpenSetClassifier(**{"encoder": "precomputed"} | quick | options)


def names(y):
    return np.array([NAMES[label] for label in y.tolist()])


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(PROBLEM.X, PROBLEM.y)


def test_scores_that_follow_from_others(fitted):
    truth = np.append(PROBLEM.truth, [-1] * len(PROBLEM.unknown))
    assert fitted.score(BOTH, truth) == np.mean(fitted.predict(BOTH) == truth)
    weights = (truth == -1).astype(float)
    assert fitted.score(BOTH, truth, weights) == np.mean(fitted.predict(PROBLEM.unknown) == -1)
    np.testing.assert_array_equal(fitted.score_samples(BOTH), -fitted.unknown_score(BOTH))
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(BOTH)), fitted.predict_proba(BOTH))
    with pytest.raises(UsageError, match=r"y has shape \(3,\) for 260 samples"):
        fitted.score(BOTH, [1, 2, 3])


def test_embeddings_by_transform(fitted):
    z_ND = fitted.transform(PROBLEM.known)
    assert torch.equal(torch.from_numpy(z_ND), fitted._embed(PROBLEM.known)[0])
    assert fitted.get_feature_names_out()[0] == "opensetclassifier0"
    assert len(fitted.get_feature_names_out()) == z_ND.shape[1]


def test_cross_validation_and_search_by_default_and_by_accuracy():
    y = names(PROBLEM.y)
    text = classifier(unknown_label="unknown", epochs=20)
    assert cross_val_score(text, PROBLEM.X, y, cv=2).min() > 0.8
    assert cross_val_score(text, PROBLEM.X, y, cv=2, scoring="accuracy").min() > 0.8
    # A scorer of scikit-learn refuses -1 next to text; the estimator's own score does not.
    assert classifier(epochs=20).fit(PROBLEM.X, y).score(PROBLEM.known, names(PROBLEM.truth)) > 0.8
    found = GridSearchCV(classifier(epochs=20), {"accept": [0.5, 0.95]}, cv=2).fit(PROBLEM.X, PROBLEM.y)
    assert found.best_params_ == {"accept": 0.95}


def test_a_text_for_unknown_is_taken_by_the_metrics(tmp_path):
    text = classifier(method="pmal", unknown_label="unknown").fit(PROBLEM.X, names(PROBLEM.y))
    truth = np.append(names(PROBLEM.truth), ["unknown"] * len(PROBLEM.unknown))
    found = text.predict(BOTH)
    assert found.dtype.kind == "U"
    report = classification_report(truth, found, output_dict=True)
    assert report["unknown"]["recall"] > 0.5
    assert {entry["label"] for entry in text.explain(BOTH)} == set(found.tolist())
    text.calibrate(BOTH, truth)
    text.save(tmp_path / "saved")
    again = OpenSetClassifier.load(tmp_path / "saved", device="cpu")
    assert again.unknown_label == "unknown"
    assert np.array_equal(again.predict(BOTH), text.predict(BOTH))
    with pytest.raises(DataError, match=r"y\[0\] is 'two', which stands for unknown"):
        classifier(unknown_label="two").fit(PROBLEM.X, np.where(PROBLEM.y == 2, "two", "other"))


@pytest.mark.parametrize("kind", ["booleans", "floats", "text", "integers"])
def test_labels_of_every_kind_come_back_after_saving_too(kind, tmp_path):
    given = {
        "booleans": PROBLEM.y > 4,
        "floats": PROBLEM.y.astype(float),
        "text": names(PROBLEM.y),
        "integers": PROBLEM.y.astype(np.int32),
    }[kind]
    made = classifier().fit(PROBLEM.X, given)
    assert made.classes_.tolist() == sorted(set(given.tolist()))
    found = made.predict(BOTH)
    assert set(found.tolist()) == {*given.tolist(), -1}
    made.save(tmp_path / "saved")
    again = OpenSetClassifier.load(tmp_path / "saved", device="cpu")
    assert again.classes_.dtype == made.classes_.dtype
    assert again.predict(BOTH).tolist() == found.tolist()


def test_a_table_keeps_its_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    columns = [f"c{i}" for i in range(12)]
    X, y = pandas.DataFrame(PROBLEM.X, columns=columns), pandas.Series(names(PROBLEM.y), dtype="category")
    made = classifier(encoder="auto").fit(X, y)
    assert made.feature_names_in_.tolist() == columns
    known = pandas.DataFrame(PROBLEM.known, columns=columns)
    made.save(tmp_path / "saved")
    for one in (made, OpenSetClassifier.load(tmp_path / "saved", device="cpu")):
        assert one.score(known, names(PROBLEM.truth)) > 0.8
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            one.predict(known[columns[::-1]])
        with pytest.raises(ValueError, match="Feature names unseen at fit time"):
            one.transform(known.rename(columns={"c3": "height"}))
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            one.predict(PROBLEM.known)
    made.fit(PROBLEM.X, PROBLEM.y)
    assert not hasattr(made, "feature_names_in_")
    frame = make_pipeline(StandardScaler(), made).set_output(transform="pandas").fit_transform(X, y)
    assert frame.columns[-1] == f"opensetclassifier{frame.shape[1] - 1}"


def test_a_failed_fit_leaves_what_was_fitted(fitted):
    before = fitted.predict(BOTH)
    with pytest.raises(DataError, match="y has shape"):
        fitted.fit(PROBLEM.X[:, 1:], PROBLEM.y[1:])
    assert fitted.n_features_in_ == 12
    assert np.array_equal(fitted.predict(BOTH), before)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_one_class_is_told_from_all_else(scale, tmp_path):
    own = PROBLEM.y == 2
    made = OpenSetClassifier(random_state=0, device="cpu").fit(scale * PROBLEM.X[own], PROBLEM.y[own])
    known, other = (scale * PROBLEM.known[mask] for mask in (PROBLEM.truth == 2, PROBLEM.truth != 2))
    assert auroc(made.unknown_score(known), made.unknown_score(other)) > 0.99
    assert set(made.predict(known).tolist()) == {2, -1}
    assert np.mean(made.predict(known) == 2) > 0.7
    assert (made.predict(other) == -1).all()
    made.save(tmp_path / "one")
    again = OpenSetClassifier.load(tmp_path / "one", device="cpu")
    assert np.array_equal(again.predict(known), made.predict(known))
    assert again.set_params(reject_by="auto").model_.rule.score == "probability"
    with pytest.raises(UsageError, match="1 class: only the typicality of samples tells it"):
        OpenSetClassifier(method="arpl").fit(PROBLEM.X[own], PROBLEM.y[own])


def test_of_one_class_whose_samples_are_all_alike_only_these_are_known():
    """Their covariance is 0, so that nothing was far from it: every row was known."""
    alike = np.tile(np.array([1.0, 2.0, 3.0, 4.0], np.float32), (60, 1))
    made = OpenSetClassifier(random_state=0, device="cpu").fit(alike, np.zeros(60, int))
    others = np.array([[1, 2, 3, 5], [9, 9, 9, 9], [0, 0, 0, 0], [1, 2, 3, 4.0001]], np.float32)
    assert made.predict(alike[:2]).tolist() == [0, 0]
    assert made.predict(others).tolist() == [-1] * 4


def test_what_is_not_taken_is_refused_in_one_line(fitted):
    refused = {
        r"X is sparse.*X\.toarray\(\)": lambda: classifier().fit(csr_array(PROBLEM.X), PROBLEM.y),
        "X is sparse": lambda: fitted.predict(csr_array(PROBLEM.X)),
        "fit takes no sample_weight": lambda: classifier().fit(PROBLEM.X, PROBLEM.y, sample_weight=PROBLEM.y),
        "the option score is called reject_by now": lambda: OpenSetClassifier(score="logit"),
        "score is called reject_by": lambda: classifier().set_params(score="logit"),
        "called reject_by now": lambda: setattr(fitted, "score", "logit"),
        "a continuous value": lambda: classifier().fit(PROBLEM.X, PROBLEM.X[:, 0]),
        "Reshape your data": lambda: fitted.predict(PROBLEM.X[0]),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "--" not in str(caught.value)
    with pytest.raises(
        UsageError, match="encoder 'small' takes images, and X has rows of numbers: use precom"
    ):
        classifier(encoder="small").fit(PROBLEM.X, PROBLEM.y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        classifier().fit(PROBLEM.X, PROBLEM.y, weights=1)


@pytest.mark.parametrize("count", [2, 3])
def test_known_ness_is_never_taken_for_a_score_of_classes(count):
    """What asks for scores of classes gets those of `predict_proba`, in a pipeline, too."""
    chosen = np.isin(PROBLEM.y, np.unique(PROBLEM.y)[:count])
    X, y = PROBLEM.X[chosen], PROBLEM.y[chosen]
    model = make_pipeline(StandardScaler(), classifier(epochs=20)).fit(X, y)
    usual = np.mean(model.classes_[model.predict_proba(X).argmax(axis=1)] == y)
    for ensemble in (True, False):
        calibrated = CalibratedClassifierCV(model, cv=2, ensemble=ensemble).fit(X, y)
        assert calibrated.score(X, y) > usual - 0.1 > 1.5 / count - 0.1
    assert OneVsRestClassifier(model).fit(X, y).score(X, y) > usual - 0.1
    scoring = "roc_auc" if count == 2 else "roc_auc_ovr"
    by_class = make_scorer(roc_auc_score, response_method="predict_proba", multi_class="ovr")
    assert get_scorer(scoring)(model, X, y) == by_class(model, X, y) > 0.95
    assert hasattr(classifier(), "decision_function")


def test_models_of_version_0_1_are_loaded(fitted, tmp_path):
    import json

    fitted.save(tmp_path / "old")
    file = tmp_path / "old" / "estimator.json"
    record = json.loads(file.read_text())
    assert record.pop("labels") == "integers"
    params = record["params"]
    del params["unknown_label"]
    record["params"] = params | {"score": params.pop("reject_by")}
    file.write_text(json.dumps(record | {"integers": True}))
    again = OpenSetClassifier.load(tmp_path / "old", device="cpu")
    assert (again.reject_by, again.unknown_label) == ("auto", -1)
    assert np.array_equal(again.predict(BOTH), fitted.predict(BOTH))


def test_a_notebook_shows_what_was_learned(fitted):
    assert "pmal-fitted" not in classifier()._repr_html_()
    fitted_text = classifier(unknown_label="<none>").fit(PROBLEM.X, names(PROBLEM.y))
    shown = fitted_text._repr_mimebundle_()["text/html"]
    for part in ("4: five, seven, three, two", "&lt;none&gt;", "logit", "accepts", "docs/estimator.md"):
        assert part in shown
    assert "pmal-fitted" in fitted_text._repr_html_()
    prototypes = classifier(method="pmal", prototypes_per_class=2).fit(PROBLEM.X, PROBLEM.y)
    assert "8, 2 of each class" in prototypes._repr_html_()
    bare = classifier(held_out=0).fit(PROBLEM.X, PROBLEM.y)
    assert "none: no samples were held out" in bare._repr_html_()
