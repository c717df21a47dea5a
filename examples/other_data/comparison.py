"""OpenSetClassifier next to what scikit-learn offers for the same question, on rows of numbers."""

import warnings
from typing import NamedTuple

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmal import OpenSetClassifier, auroc

ACCEPT = 0.95


class Problem(NamedTuple):
    name: str
    train_X: np.ndarray
    train_y: np.ndarray
    test_X: np.ndarray
    """Of known classes."""
    test_y: np.ndarray
    unknown_X: np.ndarray


def open_set(name, X, y, known, seed):
    """Return the problem in which some classes are known; a third of their samples is for the test."""
    is_known = np.isin(y, known)
    parts = train_test_split(
        X[is_known], y[is_known], test_size=1 / 3, stratify=y[is_known], random_state=seed
    )
    train_X, test_X, train_y, test_y = parts
    return Problem(name, train_X, train_y, test_X, test_y, X[~is_known])


def methods(seed):
    """Return fresh classifiers and detectors by name; the last three have no threshold of their own."""
    forest, logistic = IsolationForest(random_state=seed), LogisticRegression(max_iter=1000)
    return {
        "OpenSetClassifier()": OpenSetClassifier(random_state=seed, accept=ACCEPT),
        'OpenSetClassifier(encoder="mlp")': OpenSetClassifier(
            encoder="mlp", random_state=seed, accept=ACCEPT
        ),
        "LocalOutlierFactor": LocalOutlierFactor(novelty=True),
        "IsolationForest": forest,
        "CalibratedClassifierCV(LogisticRegression)": CalibratedClassifierCV(logistic),
    }


def compare(problem, seed=0):
    """Yield a row for each method that can do the problem, as shares from 0 to 1."""
    one_class = len(set(problem.train_y)) == 1
    for name, method in methods(seed).items():
        if one_class and name in (
            'OpenSetClassifier(encoder="mlp")',
            "CalibratedClassifierCV(LogisticRegression)",
        ):
            continue  # there is nothing to tell apart
        usual = usual_open_set if isinstance(method, OpenSetClassifier) else usual_elsewhere
        yield {
            "data": problem.name,
            "method": name,
            **usual(make_pipeline(StandardScaler(), method), problem, seed),
        }


def usual_open_set(model, problem, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few held-out samples set no sharp threshold, and it says so
        model.fit(problem.train_X, problem.train_y)
    known, unknown = model.predict(problem.test_X), model.predict(problem.unknown_X)
    nearest = model.classes_[model.predict_proba(problem.test_X).argmax(axis=1)]
    scores = (model.score_samples(X) for X in (problem.test_X, problem.unknown_X))
    rejected = (np.mean(found == model[-1].unknown_label) for found in (known, unknown))
    return row(np.mean(nearest == problem.test_y), *scores, *rejected)


def usual_elsewhere(model, problem, seed):
    """A fifth of the training samples sets the threshold."""
    learn_X, held_X, learn_y, _ = train_test_split(
        problem.train_X, problem.train_y, test_size=0.2, stratify=problem.train_y, random_state=seed
    )
    model.fit(learn_X, learn_y)
    classifies = hasattr(model, "predict_proba")

    def usual(X):
        return model.predict_proba(X).max(axis=1) if classifies else model.score_samples(X)

    limit = np.quantile(usual(held_X), 1 - ACCEPT)
    known, unknown = usual(problem.test_X), usual(problem.unknown_X)
    accuracy = np.mean(model.predict(problem.test_X) == problem.test_y) if classifies else None
    return row(accuracy, known, unknown, np.mean(known < limit), np.mean(unknown < limit))


def row(accuracy, known_usual, unknown_usual, known_rejected, unknown_rejected):
    return {
        "accuracy": None if accuracy is None else float(accuracy),
        "auroc": float(auroc(-known_usual, -unknown_usual)),
        "known_accepted": float(1 - known_rejected),
        "unknown_rejected": float(unknown_rejected),
    }


def show(rows):
    """Print the rows, in percent."""
    columns = ("accuracy", "auroc", "known_accepted", "unknown_rejected")
    for one in rows:
        figures = ("     -" if one[name] is None else f"{100 * one[name]:6.1f}" for name in columns)
        print(f"{one['data']:32s} {one['method']:44s}", *figures, flush=True)


def run(problems):
    print(f"{'data':32s} {'method':44s} accuracy, AUROC, known accepted, unknown rejected (%)")
    for problem in problems:
        show(compare(problem))
