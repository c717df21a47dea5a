"""The examples without images: what they compare on, and what they compare with."""

import importlib
import re
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pmal import OpenSetClassifier
from tests.support.documented import ROOT

pytestmark = pytest.mark.slow
NAMES = ("comparison", "tables", "text", "sound")


@pytest.fixture
def examples(monkeypatch):
    """The modules by name, with few samples; none of them stays imported."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "other_data"))
    found = {name: importlib.import_module(name) for name in NAMES}
    for name, module in found.items():
        monkeypatch.delitem(sys.modules, name)
        if hasattr(module, "EACH"):
            monkeypatch.setattr(module, "EACH", 12)
    return found


def test_each_example_has_known_and_unknown_rows(examples, monkeypatch):
    monkeypatch.setattr(examples["text"], "PARTS", 4)
    texts = examples["text"].docstrings("rich", seed=0)
    assert len(texts) == 12
    assert not re.search("rich|numpy", " ".join(texts), re.IGNORECASE)
    problems = [problem for name in NAMES[1:] for problem in examples[name].problems()]
    assert [problem.name for problem in problems] == [
        "digits, 6 of 10 classes",
        "wine, 2 of 3 classes",
        "breast cancer, 1 of 2 classes",
        "docstrings, 3 of 6 libraries",
        "sounds, 4 of 6 instruments",
    ]
    for problem in problems:
        assert len(problem.train_X) == len(problem.train_y) == pytest.approx(2 * len(problem.test_X), abs=2)
        assert set(problem.test_y) == set(problem.train_y)
        assert np.isfinite(problem.unknown_X).all()


def test_rows_of_the_comparison(examples, monkeypatch):
    quick = OpenSetClassifier(encoder="mlp", epochs=3, held_out=0.2, random_state=0)
    comparison = examples["comparison"]
    monkeypatch.setattr(comparison, "methods", lambda _: {"ours": quick, "logistic": LogisticRegression()})
    wine = list(examples["tables"].problems())[1]
    ours, logistic = comparison.compare(wine)
    assert (ours["method"], ours["data"]) == ("ours", wine.name)
    model = comparison.make_pipeline(comparison.StandardScaler(), LogisticRegression())
    learn = comparison.train_test_split(
        wine.train_X, wine.train_y, test_size=0.2, stratify=wine.train_y, random_state=0
    )
    model.fit(learn[0], learn[2])
    assert logistic["accuracy"] == model.score(wine.test_X, wine.test_y)
    limit = np.quantile(model.predict_proba(learn[1]).max(axis=1), 0.05)
    rejected = model.predict_proba(wine.unknown_X).max(axis=1) < limit
    assert logistic["unknown_rejected"] == rejected.mean()
    assert min(ours["accuracy"], ours["auroc"], logistic["auroc"]) > 0.8
