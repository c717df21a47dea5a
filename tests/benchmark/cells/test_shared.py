"""Trained classifiers that wait for the next run: given whole or not at all, and never twice."""

import os
import shutil

import pytest
import torch

import pmal
from pmal._runtime.tensors import load_tensors, save_tensors
from pmal.benchmark.cells.shared import ClassifierStore, classifier_digest, classifier_keys
from tests.benchmark.ledgers import tiny

CONFIG = tiny("softmax").config()
[KEY] = classifier_keys(CONFIG, "cpu")


def train(run, value=1.0):
    """As if the run had trained its classifier."""
    save_tensors(weights(run), {"w": torch.tensor([value])}, {"epochs": 1})
    return run


def weights(run):
    return run / "classifiers" / "0" / "weights"


def value_in(run):
    return load_tensors(weights(run))[0]["w"].item()


@pytest.fixture
def store(tmp_path):
    """With one classifier in it."""
    found = ClassifierStore(tmp_path / "store", "cpu")
    found.keep(CONFIG, train(tmp_path / "first"), {0: {"made_by": "first", "seconds": 2.0}})
    return found


def test_what_one_run_trained_the_next_one_has(store, tmp_path):
    shutil.rmtree(tmp_path / "first")
    store.give(CONFIG, tmp_path / "second")
    assert value_in(tmp_path / "second") == 1.0
    assert store.about(KEY) == {"made_by": "first", "seconds": 2.0}
    assert store.about((KEY[0], 1)) == {}


def test_what_a_run_has_trained_itself_stays_and_so_does_the_first(store, tmp_path):
    store.give(CONFIG, tmp_path / "second")
    train(tmp_path / "second", 2.0)
    store.give(CONFIG, tmp_path / "second")
    store.keep(CONFIG, tmp_path / "second", {0: {"made_by": "second"}})
    assert value_in(tmp_path / "second") == 2.0
    assert store.about(KEY)["made_by"] == "first"
    store.give(CONFIG, tmp_path / "third")
    assert value_in(tmp_path / "third") == 1.0


def test_a_disk_without_hard_links_gets_copies(store, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("not on this disk")

    monkeypatch.setattr(os, "link", refuse)
    store.give(CONFIG, tmp_path / "second")
    assert value_in(tmp_path / "second") == 1.0


def test_files_left_by_a_process_that_was_killed_are_replaced(store, tmp_path):
    target = tmp_path / "second" / "classifiers" / "0"
    store.give(CONFIG, tmp_path / "second")
    (target / "weights.json").unlink()
    store.give(CONFIG, tmp_path / "second")  # killed between the two: one is a link already
    assert value_in(tmp_path / "second") == 1.0
    (target / "weights.json").unlink()
    (target / "weights.safetensors").unlink()
    (target / "weights.safetensors").write_bytes(b"torn")
    store.give(CONFIG, tmp_path / "second")
    assert value_in(tmp_path / "second") == 1.0


def test_the_pointer_comes_last(store, tmp_path, monkeypatch):
    linked, link = [], os.link
    monkeypatch.setattr(os, "link", lambda a, b: linked.append(b.name) or link(a, b))
    store.give(CONFIG, tmp_path / "second")
    assert linked == ["weights.safetensors", "weights.json"]


@pytest.mark.parametrize(
    "pointer", ["{", "[]", "{}", '{"tensors": "gone", "sha256": ""}', '{"tensors": 3, "sha256": ""}']
)
def test_a_damaged_one_is_dropped_and_another_may_take_its_place(store, tmp_path, pointer):
    (store.place(KEY) / "weights.json").unlink()
    (store.place(KEY) / "weights.json").write_text(pointer)
    store.give(CONFIG, tmp_path / "second")
    assert not weights(tmp_path / "second").with_suffix(".json").exists()
    assert KEY not in store
    store.keep(CONFIG, train(tmp_path / "second", 2.0), {})
    assert KEY in store


def test_damaged_words_about_a_training_are_none(store):
    (store.place(KEY) / "training.json").write_text("{")
    assert store.about(KEY) == {}


def test_where_another_process_was_quicker_its_classifier_stays(tmp_path):
    store = ClassifierStore(tmp_path / "store", "cpu")
    store.place(KEY).mkdir(parents=True)
    (store.place(KEY) / "weights.safetensors").write_bytes(b"of the other")  # its pointer comes next
    store.keep(CONFIG, train(tmp_path / "first"), {})
    assert [path.name for path in store.place(KEY).parent.iterdir()] == ["0"]
    assert (store.place(KEY) / "weights.safetensors").read_bytes() == b"of the other"


def test_another_version_trains_its_own(monkeypatch):
    before = classifier_digest(CONFIG, "cpu")
    monkeypatch.setattr(pmal, "__version__", "0.0.0")
    assert classifier_digest(CONFIG, "cpu") != before
