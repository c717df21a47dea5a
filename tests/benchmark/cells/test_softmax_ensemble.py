"""Classifiers that answer by the mean of their logits: the figures, and what they share with other cells."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pmal._runtime.progress import Silent
from pmal._runtime.session import open_session
from pmal.benchmark.cells import softmax_ensemble
from pmal.benchmark.cells.cell import ENSEMBLE
from pmal.benchmark.cells.running import Places, run_cell
from pmal.benchmark.cells.shared import classifier_keys
from pmal.benchmark.cells.softmax_ensemble import mean_logits, measure_ensemble
from pmal.benchmark.grid import Planned, Request, plan
from pmal.config import Resources
from pmal.data.feeding.parts import image_shape, open_part
from pmal.data.splits.task import open_task
from pmal.ensemble import classifiers
from pmal.ensemble.classifiers import load_classifiers
from pmal.ensemble.embeddings import embed_images
from pmal.reporting.metrics import auroc
from tests.benchmark.ledgers import TINY, tiny

pytestmark = pytest.mark.slow

CELL = tiny("softmax").together(3)


@pytest.fixture
def session():
    return open_session(Resources(device="cpu"), Silent())


def test_logits_are_averaged_over_the_classifiers(session, monkeypatch):
    outputs = {
        "a": torch.tensor([[1.0, 4.0]]),
        "b": torch.tensor([[4.0, -2.0]]),
        "c": torch.tensor([[1.0, 1.0]]),
    }
    monkeypatch.setattr(softmax_ensemble, "embed_images", lambda name, images, advance: (None, outputs[name]))
    [found] = mean_logits(list(outputs), [SimpleNamespace(images=[0])], session)
    assert found.tolist() == [[2.0, 1.0]]
    assert found.dtype == torch.float64


@pytest.fixture
def measured(tmp_path, session):
    """The figures of an ensemble, and the logits of each of its classifiers by hand."""
    config, run = CELL.config(), tmp_path / "run"
    found = measure_ensemble(config, run, session)
    task = open_task(config.data, None)
    shape = image_shape(task.train, config.data)
    parts = [open_part(name, getattr(task, name), shape, session) for name in ("test", "unknown")]
    networks = load_classifiers(run / "classifiers", 3, task.class_names, session)
    logits = [[embed_images(network, part.images)[1].double() for part in parts] for network in networks]
    return found, logits, parts[0].labels(torch.device("cpu"))


def test_the_figures_are_those_of_the_mean_logits(measured):
    figures, logits, labels_N = measured
    known_NK, unknown_NK = (torch.stack(part).mean(dim=0) for part in zip(*logits, strict=True))
    assert figures["accuracy"]["value"] == float((known_NK.argmax(dim=1) == labels_N).double().mean())
    alone = [float((known.argmax(dim=1) == labels_N).double().mean()) for known, _ in logits]
    assert figures["accuracy"]["value"] not in alone  # three that differ: the test would see a single one
    expected = {
        "logit": auroc(-known_NK.amax(dim=1), -unknown_NK.amax(dim=1)),
        "energy": auroc(-known_NK.logsumexp(dim=1), -unknown_NK.logsumexp(dim=1)),
        "probability": auroc(
            1 - known_NK.softmax(dim=1).amax(dim=1), 1 - unknown_NK.softmax(dim=1).amax(dim=1)
        ),
    }
    found = {name: row["auroc"]["value"] for name, row in figures["scores"].items()}
    assert found == pytest.approx({name: float(value) for name, value in expected.items()})
    assert (figures["known_images"], figures["unknown_images"]) == (len(known_NK), len(unknown_NK))


def test_the_record_has_what_a_fit_has(session, tmp_path):
    places = Places(tmp_path / "out", tmp_path / "work")
    words = {"data": "sample", "recipe": "sample", "epochs": 1, "settings": TINY}
    [one] = plan(Request(methods="softmax-ensemble", **words))
    assert (one.cell.networks, one.cell.epochs) == (3, 1)  # 2 + 1 + 18 / 32 passes
    for planned in (one, Planned(tiny("softmax"))):
        run_cell(planned, places, session)
    record, fit = (json.loads(places.ledger.path(c).read_text()) for c in (one.cell, tiny("softmax")))
    assert set(fit) - set(record) == {"decision"}  # it has no threshold
    assert set(record["scores"]) == {"probability", "logit", "energy"}
    # These look at the layers, or the embeddings, of one network; the decision needs held-out images.
    alone = {"typicality", "neighbors", "mahalanobis", "vim", "react", "decision"}
    assert set(fit["scores"]) - set(record["scores"]) == alone
    assert set(record["scores"]["logit"]["oscr"]) == set(fit["scores"]["logit"]["oscr"])
    assert (record["score"], record["passes"], record["about"]["classifiers"]) == ("logit", 3, 3)
    assert set(fit["manifest"]) - set(record["manifest"]) <= {"about", "processes"}
    assert record["manifest"]["hardware"]["device"] == "cpu"
    assert "--methods softmax-ensemble " in record["command"]
    assert [r.cell for r in places.ledger.results(ENSEMBLE)[0]] == [one.cell]
    assert not places.folder(one.cell).exists()


def test_classifiers_are_those_of_other_cells(session, tmp_path, monkeypatch):
    trained, train = [], classifiers.train_together

    def counted(title, trainings, *words):
        trained.extend(training.name for training in trainings)
        return train(title, trainings, *words)

    monkeypatch.setattr(classifiers, "train_together", counted)
    places = Places(tmp_path / "out", tmp_path / "work")
    run_cell(Planned(tiny("pmal")), places, session)
    record = run_cell(Planned(CELL), places, session)
    assert trained == ["classifier 0", "classifier 1", "classifier 2"]
    assert classifier_keys(CELL.config(), "cpu")[:2] == classifier_keys(tiny("pmal").config(), "cpu")
    shared = places.ledger.read(CELL).record["shared_classifiers"]
    assert {index: about["made_by"] for index, about in shared.items()} == dict.fromkeys(
        "01", tiny("pmal").name
    )
    assert record["passes"] == 3  # whoever trained them


def test_an_interrupted_ensemble_goes_on_where_it_stopped(session, tmp_path):
    places = Places(tmp_path / "out", tmp_path / "work")

    class Stopping(Silent):
        def stage(self, name, total, unit, done=0):
            if name == "evaluation":
                raise KeyboardInterrupt
            return super().stage(name, total, unit, done)

    with pytest.raises(KeyboardInterrupt):
        run_cell(Planned(CELL), places, replace(session, display=Stopping()))
    run_cell(Planned(CELL), places, session)
    assert places.ledger.read(CELL).record["attempts"] == 2


def test_without_unknown_classes_there_are_no_scores(session, tmp_path):
    config = CELL.config()
    config = replace(config, data=replace(config.data, family="all"))
    figures = measure_ensemble(config, tmp_path / "run", session)
    assert (figures["scores"], figures["unknown_images"]) == ({}, 0)
    assert 0 < figures["accuracy"]["value"] <= 1
