"""The suite for estimators passes what keeps the contract, and fails what breaks any part of it."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from pmal import OpenSetClassifier, check_open_set_estimator


class Centroids(ClassifierMixin, BaseEstimator):
    """Somebody's own method in a few lines: the nearest class mean, and unknown beyond a radius."""

    def __init__(self, radius=5.0, random_state=None):
        self.radius = radius
        self.random_state = random_state

    def fit(self, X, y):
        X, y = self._checked(X), np.asarray(y)
        if len(X) != len(y) or (y == -1).any():
            raise ValueError("y")
        self.classes_ = np.unique(y)
        self.means_ = np.stack([X[y == label].mean(axis=0) for label in self.classes_])
        return self

    def _checked(self, X):
        if not np.isfinite(X).all():
            raise ValueError("NaN")
        return np.asarray(X)

    def _distances(self, X):
        check_is_fitted(self, "means_")
        return np.linalg.norm(self._checked(X)[:, None] - self.means_, axis=2)

    def predict(self, X):
        distances = self._distances(X)
        table = np.array(
            [*self.classes_.tolist(), -1], dtype=None if self.classes_.dtype.kind == "i" else object
        )
        return table[np.where(distances.min(axis=1) < self.radius, distances.argmin(axis=1), -1)]

    def unknown_score(self, X):
        return self._distances(X).min(axis=1)

    def decision_function(self, X):
        return self.radius - self.unknown_score(X)

    def predict_proba(self, X):
        near = np.exp(-self._distances(X))
        return near / near.sum(axis=1, keepdims=True)

    def save(self, folder):
        Path(folder).mkdir()
        state = [self.get_params(), self.classes_.tolist(), self.means_.tolist()]
        (Path(folder) / "state.json").write_text(json.dumps(state))

    @classmethod
    def load(cls, folder):
        params, classes, means = json.loads((Path(folder) / "state.json").read_text())
        loaded = cls(**params)
        loaded.classes_, loaded.means_ = np.array(classes), np.array(means)
        return loaded


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [Centroids(), OpenSetClassifier(), OpenSetClassifier("softmax")])
def test_what_keeps_the_contract_passes(estimator):
    before = repr(estimator.get_params())
    assert check_open_set_estimator(estimator) is None
    assert repr(estimator.get_params()) == before
    assert not hasattr(estimator, "classes_")


class StoresOtherwise(Centroids):
    def __init__(self, radius=5.0, random_state=None):
        self.radius = float(radius) + 0.0
        self.random_state = random_state


class AnswersUnfitted(Centroids):
    def unknown_score(self, X):
        return super().unknown_score(X) if hasattr(self, "means_") else np.zeros(len(X))


class LacksScore(Centroids):
    unknown_score = None


class ReturnsNothing(Centroids):
    def fit(self, X, y):
        super().fit(X, y)


class ScalesInPlace(Centroids):
    def fit(self, X, y):
        X -= 1
        return super().fit(X, y)


class PredictsInPlace(Centroids):
    def predict(self, X):
        found = super().predict(X)
        X *= 2
        return found


class ChangesParameter(Centroids):
    def fit(self, X, y):
        self.radius = 4.0
        return super().fit(X, y)


class UnknownIsNone(Centroids):
    def predict(self, X):
        found = super().predict(X).astype(object)
        found[found == -1] = None
        return found


class UnknownIsZero(Centroids):
    def predict(self, X):
        found = super().predict(X)
        return np.where(found == -1, 0, found)


class NeverRejects(Centroids):
    def predict(self, X):
        nearest = self._distances(X).argmin(axis=1)
        return self.classes_[nearest]


class ShiftsLabels(Centroids):
    def predict(self, X):
        found = super().predict(X)
        return np.where(found == self.classes_[0], self.classes_[1], found)


class FlipsScore(Centroids):
    def unknown_score(self, X):
        return -super().unknown_score(X)

    def decision_function(self, X):
        return self.radius + self.unknown_score(X)


class FlipsDecision(Centroids):
    def decision_function(self, X):
        return -super().decision_function(X)


class SumsToTwo(Centroids):
    def predict_proba(self, X):
        return 2 * super().predict_proba(X)


class LacksAColumn(Centroids):
    def predict_proba(self, X):
        return super().predict_proba(X)[:, 1:]


class LooksAtTheBatch(Centroids):
    def unknown_score(self, X):
        return super().unknown_score(X) + 1e-3 * len(X)

    def decision_function(self, X):
        return self.radius - Centroids.unknown_score(self, X)


class DrawsFreely(Centroids):
    count = itertools.count()

    def fit(self, X, y):
        super().fit(X, y)
        self.means_ = self.means_ + 1e-3 * next(self.count)
        return self


class ForgetsRadius(Centroids):
    @classmethod
    def load(cls, folder):
        return super().load(folder).set_params(radius=1.0)


class FitsNaN(Centroids):
    def _checked(self, X):
        return np.nan_to_num(X)


class TakesAnyWidth(Centroids):
    def _distances(self, X):
        return super()._distances(
            np.resize(X, (len(X), self.means_.shape[1])) if hasattr(self, "means_") else X
        )


class LearnsUnknown(Centroids):
    def fit(self, X, y):
        return super().fit(X, np.abs(y) if np.asarray(y).dtype.kind == "i" else y)


class KeepsOldClasses(Centroids):
    def fit(self, X, y):
        before = getattr(self, "classes_", None)
        super().fit(X, y)
        self.classes_ = self.classes_ if before is None else before
        return self


class WritesUnknownOut(Centroids):
    def predict(self, X):
        found = super().predict(X)
        return np.where(found == -1, "unknown", found) if found.dtype == object else found


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (StoresOtherwise(radius=5), "clone: Cannot clone object StoresOtherwise"),
        (AnswersUnfitted(), "unknown_score before fit: expected .*NotFittedError"),
        (LacksScore(), "unknown_score before fit: expected .*NotFittedError, got TypeError"),
        (ReturnsNothing(), "expected to return the estimator itself"),
        (ScalesInPlace(), "fit: changed X"),
        (PredictsInPlace(), "predict: changed X"),
        (ChangesParameter(), "fit: changed a parameter"),
        (UnknownIsNone(), "expected integers for integer labels, got object"),
        (UnknownIsZero(), r"labels \[0\] are neither in classes_ nor -1"),
        (NeverRejects(), "-1 for 0% of unknown samples"),
        (ShiftsLabels(), "of known samples got their class"),
        (FlipsScore(), "larger must be more unknown; AUROC is 0.00"),
        (FlipsDecision(), "expected above 0 for known samples alone"),
        (SumsToTwo(), "rows do not sum to 1"),
        (LacksAColumn(), r"shape \(160, 3\), expected \(160, 4\)"),
        (LooksAtTheBatch(), "a sample alone has another score"),
        (DrawsFreely(), "the same random_state gives another result"),
        (ForgetsRadius(), "load: predict answers otherwise"),
        (FitsNaN(), "predict with NaN in X: expected an error"),
        (TakesAnyWidth(), "predict with other features: expected an error"),
        (LearnsUnknown(), "fit with the label -1: expected an error"),
        (KeepsOldClasses(), "classes_ of the first fit are left"),
        (WritesUnknownOut(), "'unknown' is neither a label of y nor -1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Centroids) else "",
)
def test_what_breaks_it_fails_and_says_why(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_open_set_estimator(broken)
