"""Images that are held out in turn: each is scored by a model that has not seen it."""

import dataclasses

import numpy as np
import pytest
import torch

from pmal import OpenSetClassifier
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import Part
from pmal.data.samples import Samples, VectorStore
from pmal.data.splits.task import fold_of_each
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.calibration import folding
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.new_class import add_class
from tests.support.jobs import make_job

pytestmark = pytest.mark.slow


def part(labels, width=3):
    vectors = np.arange(len(labels) * width, dtype=np.float32).reshape(-1, width)
    samples = Samples.whole(VectorStore("X", vectors), np.array(labels), ("a", "b"))
    return Part(samples, ResidentImages(torch.from_numpy(vectors)[:, :, None, None], torch.device("cpu")), ())


def test_every_part_is_scored_by_a_model_that_was_trained_on_the_others(tmp_path, monkeypatch):
    train, learned = part([0] * 6 + [1] * 4 + [0]), []

    def learn(job):
        learned.append(set(job.train.samples.ids.tolist()))
        job.folder.mkdir(parents=True)

    def scored(found, held_out, job):
        ids = held_out.samples.ids
        assert not {*ids.tolist()} & learned[-1]
        assert {*ids.tolist()} | learned[-1] == {*range(11)}
        assert (
            next(held_out.images.stream([torch.arange(len(ids))]))[:, 0, 0, 0].tolist() == (3 * ids).tolist()
        )
        return Calibration(
            {"logit": torch.from_numpy(ids).double()}, torch.zeros(len(ids), dtype=torch.int64), None
        )

    monkeypatch.setattr(folding, "_scored", scored)
    found = [folding.calibrate_in_turn(learn, 5, make_job(train=train, folder=tmp_path)) for _ in range(2)]
    assert len(learned) == 5, "the second time nothing is learned"
    assert sorted(found[0].scores["logit"].tolist()) == list(range(11))
    assert found[0].folds == found[1].folds == 5
    assert torch.equal(found[0].scores["logit"], found[1].scores["logit"])
    assert not (tmp_path / "folds").exists()


def test_folds_are_even_in_every_class_and_leave_single_images_in_training():
    labels = np.array([0] * 23 + [1] * 7 + [2])
    fold = fold_of_each(labels, 5)
    assert fold[-1] == -1
    for label, count in ((0, 23), (1, 7)):
        sizes = np.bincount(fold[labels == label], minlength=5)
        assert sizes.sum() == count
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(fold[fold >= 0], minlength=5)
    assert sizes.max() - sizes.min() <= 1


def problem(rng, count, width=8):
    """Three classes and their samples; clusters that overlap a little."""
    labels = np.arange(count) % 3
    return 3 * np.eye(width)[labels] + rng.normal(size=(count, width)), labels


def test_known_samples_are_accepted_as_promised_however_few_there_are():
    """Ten small problems: the mean acceptance has to be that which was asked for, within its own noise."""
    accepted = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        model = OpenSetClassifier(
            encoder="precomputed", accept=0.9, random_state=seed, device="cpu", epochs=5
        )
        model.fit(*problem(rng, 60))
        assert model.model_.calibration.folds == 10
        accepted.append(np.mean(model.predict(problem(rng, 600)[0]) != -1))
    assert 0.87 < np.mean(accepted) < 0.97


def test_a_share_that_is_asked_for_is_held_out_and_large_sets_always(tmp_path):
    rng = np.random.default_rng(0)
    options = {"encoder": "precomputed", "random_state": 0, "device": "cpu", "epochs": 1}
    asked = OpenSetClassifier(held_out=0.2, **options).fit(*problem(rng, 300))
    large = OpenSetClassifier(**options).fit(*problem(rng, 2100))
    assert asked.model_.calibration.folds == large.model_.calibration.folds == 0
    assert len(asked.model_.calibration.predictions) == 60


def test_a_saved_model_says_that_its_images_were_held_out_in_turn(tmp_path):
    model = OpenSetClassifier(encoder="precomputed", random_state=0, device="cpu", epochs=1)
    model = model.fit(*problem(np.random.default_rng(0), 90)).model_
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model", torch.device("cpu"))
    assert again.guarantee() == model.guarantee()
    assert (
        "accepts about 95 % of known images on average; with 90 images held out in 10 parts"
        in again.guarantee()[1]
    )
    wider, effect = add_class(model, "new", 9 + model.calibration.z[:9], torch.randn(9, 8, 1, 1), ["x"] * 9)
    assert effect.seen
    assert "images held out in 10 parts" in wider.guarantee()[1]
    plain = dataclasses.replace(model, calibration=dataclasses.replace(model.calibration, folds=0))
    assert "at least 95 %" in plain.guarantee()[1]


@pytest.mark.parametrize("method", ["softmax", "openmax"])
def test_other_methods_are_calibrated_in_turn_as_well(method):
    X, y = problem(np.random.default_rng(0), 60)
    model = OpenSetClassifier(
        method=method, encoder="precomputed", random_state=0, device="cpu", epochs=5
    ).fit(X, y)
    assert model.model_.calibration.folds == 10
    assert 0.8 < np.mean(model.predict(X) != -1) <= 1
