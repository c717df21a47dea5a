"""The open-world loop in Python, on rows of numbers."""

import numpy as np
import pytest

from pmal import OpenSetClassifier
from pmal.errors import DataError, UsageError
from pmal.rejection.bundle.versions import list_versions

WIDTH = 8


def heap(axis, count, seed):
    noise = 0.3 * np.random.default_rng(seed).normal(size=(count, WIDTH))
    return (noise + 3 * np.eye(WIDTH)[axis]).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    X, y = np.concatenate([heap(k, 40, k) for k in range(3)]), np.repeat(["ant", "bee", "cow"], 40)
    settings, place = {"training": {"min_steps": 0}}, tmp_path_factory.mktemp("saved") / "rows"
    model = OpenSetClassifier(
        "pmal", "precomputed", epochs=20, held_out=0.2, random_state=0, settings=settings
    )
    model.fit(X, y).save(place)
    return place


@pytest.fixture
def model(folder):
    return OpenSetClassifier.load(folder, device="cpu")


def test_groups_among_the_rejected_become_classes_and_go_again(model):
    X = np.concatenate([heap(0, 30, 50), heap(5, 30, 51), heap(6, 20, 52)])
    groups = model.discover(X)
    found = [set(group.members.tolist()) for group in groups]
    assert len(found) == 2
    assert found[0] <= set(range(30, 60))
    assert found[1] <= set(range(60, 80))
    model.add_class(X[groups[0].members], "dog")
    assert (model.predict(heap(5, 30, 60)) == "dog").mean() > 0.5
    assert model.remove_class("dog").name == "dog"
    assert model.classes_.tolist() == ["ant", "bee", "cow"]
    assert (model.predict(heap(5, 30, 60)) == "dog").sum() == 0
    everything = model.discover(X, smallest=10, rejected_only=False)
    assert sum(len(group.members) for group in everything) > 70


def test_corrected_answers_change_the_model_and_wrong_ones_are_refused(model):
    moved = heap(0, 40, 70) + 2 * np.eye(WIDTH)[4].astype(np.float32)
    effect = model.update(moved, ["ant"] * 39 + [-1])
    assert (effect.known, effect.unknown, effect.learned) == (39, 1, 20)
    assert effect.right_after >= effect.right_before
    with pytest.raises(DataError, match="no class of this model"):
        model.update(moved[:1], ["elk"])
    with pytest.raises(UsageError, match="unknown class 'elk'"):
        model.remove_class("elk")


def test_saving_what_was_changed_keeps_the_version_before(model, tmp_path):
    model.save(tmp_path / "saved")
    assert list_versions(tmp_path / "saved" / "model") == []
    model.remove_class("bee")
    model.save(tmp_path / "saved")
    versions = list_versions(tmp_path / "saved" / "model")
    assert [one.change for one in versions[1:]] == ["removed bee"]
    older = OpenSetClassifier.load(tmp_path / "saved" / "versions" / "1", device="cpu")
    assert older.classes_.tolist() == ["ant", "bee", "cow"]
    assert OpenSetClassifier.load(tmp_path / "saved", device="cpu").classes_.tolist() == ["ant", "cow"]
