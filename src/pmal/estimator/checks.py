"""What every open-set estimator promises, as a test suite for whoever adds one.

It runs on a small made-up problem of embeddings: four classes along four of twelve axes, and unknown samples
that have as much of every class. Whoever rejects anything at all rejects those.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from pmal.data.targets import UNKNOWN
from pmal.reporting.metrics import auroc

Array = NDArray[Any]
METHODS = ("predict", "unknown_score", "decision_function", "predict_proba")

_CLASSES, _FEATURES, _DISTANCE = (2, 3, 5, 7), 12, 7.0


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples to learn, samples to answer for, and samples of no class."""

    X: Array
    y: Array
    known: Array
    truth: Array
    unknown: Array


def check_open_set_estimator(estimator: Any) -> None:
    """Raise AssertionError, saying what was expected, if the estimator breaks the contract.

    The estimator need not be fitted, and is not changed: clones of it are fitted, on embeddings, for which
    one with an option `encoder` gets encoder="precomputed". `random_state` is set to 0, `unknown_label` to -1
    and `device` to the CPU, on which the same seed gives the same result.

    Args:
        estimator: an object with the methods of `OpenSetClassifier`.

    Raises:
        AssertionError: a rule of the contract does not hold.
    """
    check_parameters(estimator)
    options = {"encoder": "precomputed", "random_state": 0, "device": "cpu", "unknown_label": UNKNOWN}
    fresh = clone(estimator)
    fresh.set_params(**{name: value for name, value in options.items() if name in fresh.get_params()})
    problem = make_problem()
    check_not_fitted(clone(fresh), problem)
    fitted = check_fit(clone(fresh), problem)
    for check in FITTED_CHECKS:
        check(fitted, problem)
    check_same_seed(clone(fresh), fitted, problem)
    check_refusals(clone(fresh), fitted, problem)
    check_fit_again(fitted, problem)


def make_problem() -> Problem:
    """Return two classes of samples, and unknown ones, that any estimator tells apart."""
    random = np.random.default_rng(0)

    def draw(center: Array, count: int) -> Array:
        return center + random.normal(size=(count, _FEATURES))

    centers = _DISTANCE * np.eye(_FEATURES)[: len(_CLASSES)]
    X, known = (np.concatenate([draw(center, count) for center in centers]) for count in (140, 40))
    y, truth = (np.repeat(_CLASSES, count) for count in (140, 40))
    order = random.permutation(len(X))
    return Problem(X[order], y[order], known, truth, draw(centers.sum(axis=0), 100))


def check_parameters(estimator: Any) -> None:
    """Check that the constructor stores its arguments, so that clones are equal."""
    params = estimator.get_params(deep=False)
    try:
        copied = clone(estimator).get_params(deep=False)
    except RuntimeError as error:
        raise AssertionError(f"clone: {error}") from None
    assert repr(copied) == repr(params), "clone: other parameters than the original has"
    for name, value in params.items():
        assert getattr(estimator, name, None) is value, f"parameter {name}: not kept as it was given"
        assert getattr(clone(estimator).set_params(**{name: value}), name) is value, f"set_params: {name}"


def check_not_fitted(estimator: Any, problem: Problem) -> None:
    """Check that no method answers before `fit`."""
    for name in METHODS:
        try:
            getattr(estimator, name)(problem.known)
        except NotFittedError:
            continue
        except Exception as error:
            got = f", got {type(error).__name__}: {error}"
        else:
            got = ", got an answer"
        raise AssertionError(f"{name} before fit: expected sklearn.exceptions.NotFittedError{got}")


def check_fit(estimator: Any, problem: Problem) -> Any:
    """Check that fit returns the estimator, with classes, and changes neither data nor parameters."""
    X, y, params = problem.X.copy(), problem.y.copy(), repr(estimator.get_params())
    found = estimator.fit(X, y)
    assert found is estimator, "fit: expected to return the estimator itself"
    assert np.array_equal(X, problem.X), "fit: changed X"
    assert np.array_equal(y, problem.y), "fit: changed y"
    assert repr(estimator.get_params()) == params, "fit: changed a parameter"
    assert np.array_equal(estimator.classes_, np.unique(y)), "classes_: expected the sorted labels of y"
    return estimator


def check_input_is_kept(estimator: Any, problem: Problem) -> None:
    """Check that no method changes its input."""
    for name in METHODS:
        X = problem.known.copy()
        getattr(estimator, name)(X)
        assert np.array_equal(X, problem.known), f"{name}: changed X"


def check_labels(estimator: Any, problem: Problem) -> None:
    """Check that known samples get their class, as integers, and samples of no class mostly -1."""
    labels = estimator.predict(np.concatenate([problem.known, problem.unknown]))
    known, unknown = np.split(labels, [len(problem.known)])
    assert labels.shape == (len(problem.known) + len(problem.unknown),), (
        "predict: expected one label per sample"
    )
    assert labels.dtype.kind == "i", f"predict: expected integers for integer labels, got {labels.dtype}"
    strange = set(labels.tolist()) - {*estimator.classes_.tolist(), UNKNOWN}
    assert not strange, f"predict: labels {sorted(strange)} are neither in classes_ nor -1"
    right = float(np.mean(known == problem.truth))
    assert right >= 0.8, f"predict: {right:.0%} of known samples got their class, expected 80 % or more"
    rejected = float(np.mean(unknown == UNKNOWN))
    assert rejected >= 0.5, f"predict: -1 for {rejected:.0%} of unknown samples, expected 50 % or more"


def check_scores(estimator: Any, problem: Problem) -> None:
    """Check that larger scores are more unknown."""
    known, unknown = (estimator.unknown_score(X) for X in (problem.known, problem.unknown))
    assert known.shape == (len(problem.known),), "unknown_score: expected one number per sample"
    assert known.dtype.kind == "f", f"unknown_score: expected floats, got {known.dtype}"
    assert not np.isnan(known).any(), "unknown_score: NaN for a known sample"
    found = float(auroc(known, unknown))
    assert found >= 0.8, (
        f"unknown_score: larger must be more unknown; AUROC is {found:.2f}, expected 0.8 or more"
    )


def check_decisions(estimator: Any, problem: Problem) -> None:
    """Check that decision_function is above 0 exactly where predict names a class."""
    for X in (problem.X, problem.known, problem.unknown):
        decision, labels = estimator.decision_function(X), estimator.predict(X)
        assert decision.shape == labels.shape, "decision_function: expected one number per sample"
        wrong = np.flatnonzero((decision > 0) != (labels != UNKNOWN))
        assert not len(wrong), (
            f"decision_function: {decision[wrong[0]]} where predict says {labels[wrong[0]]}: "
            "expected above 0 for known samples alone"
        )


def check_probabilities(estimator: Any, problem: Problem) -> None:
    """Check that rows of predict_proba are shares that sum to 1."""
    found = estimator.predict_proba(problem.known)
    shape = (len(problem.known), len(estimator.classes_))
    assert found.shape == shape, f"predict_proba: shape {found.shape}, expected {shape}"
    assert (found >= 0).all(), "predict_proba: negative values"
    assert np.allclose(found.sum(axis=1), 1), "predict_proba: rows do not sum to 1"


def check_single_sample(estimator: Any, problem: Problem) -> None:
    """Check that a sample alone is scored as among others."""
    together = estimator.unknown_score(problem.known)[:1]
    alone = estimator.unknown_score(problem.known[:1])
    assert estimator.predict(problem.known[:1]).shape == (1,), "predict: expected one label for one sample"
    near = alone.shape == (1,) and np.allclose(alone, together, rtol=1e-3, atol=1e-5)
    assert near, "unknown_score: a sample alone has another score than among others"


def check_save_and_load(estimator: Any, problem: Problem) -> None:
    """Check that a loaded estimator answers as the saved one."""
    with tempfile.TemporaryDirectory() as folder:
        estimator.save(f"{folder}/saved")
        loaded = type(estimator).load(f"{folder}/saved")
    assert np.array_equal(loaded.classes_, estimator.classes_), "load: other classes_ than were saved"
    for name in METHODS:
        before, after = (getattr(one, name)(problem.known) for one in (estimator, loaded))
        # The loaded one may be on another device, which rounds otherwise.
        near = np.isclose(before, after, rtol=1e-3, atol=1e-4)
        assert near.mean() > 0.98, f"load: {name} answers otherwise than before save"


def check_same_seed(fresh: Any, fitted: Any, problem: Problem) -> None:
    """Check that the same random_state gives the same result."""
    again = fresh.fit(problem.X, problem.y)
    same = np.array_equal(again.unknown_score(problem.known), fitted.unknown_score(problem.known))
    assert same, "fit: the same random_state gives another result"


def check_refusals(fresh: Any, fitted: Any, problem: Problem) -> None:
    """Check that what cannot be used is rejected, not answered."""
    broken = problem.X.copy()
    broken[3, 1] = np.nan
    unlabeled = np.where(problem.y == _CLASSES[0], UNKNOWN, problem.y)
    calls: dict[str, Callable[[], Any]] = {
        "predict with NaN in X": lambda: fitted.predict(broken),
        "predict with other features": lambda: fitted.predict(problem.known[:, 1:]),
        "fit with NaN in X": lambda: fresh.fit(broken, problem.y),
        "fit with the label -1": lambda: fresh.fit(problem.X, unlabeled),
        "fit with labels of another length": lambda: fresh.fit(problem.X, problem.y[1:]),
    }
    for name, call in calls.items():
        try:
            call()
        except Exception:
            continue
        raise AssertionError(f"{name}: expected an error")


def check_fit_again(estimator: Any, problem: Problem) -> None:
    """Check that a second fit starts from nothing; labels may be text, and unknown is -1 all the same."""
    kept = problem.y != _CLASSES[-1]
    names = np.array([f"class {label}" for label in problem.y[kept]])
    estimator.fit(problem.X[kept], names)
    assert np.array_equal(estimator.classes_, np.unique(names)), (
        "fit again: classes_ of the first fit are left"
    )
    labels = estimator.predict(np.concatenate([problem.known, problem.unknown])).tolist()
    strange = set(labels) - {*names.tolist(), UNKNOWN}
    assert not strange, f"predict: {strange.pop()!r} is neither a label of y nor -1"
    assert UNKNOWN in labels, "predict: expected -1 for some unknown samples when labels are text"


FITTED_CHECKS: tuple[Callable[[Any, Problem], None], ...] = (
    check_input_is_kept,
    check_labels,
    check_scores,
    check_decisions,
    check_probabilities,
    check_single_sample,
    check_save_and_load,
)
