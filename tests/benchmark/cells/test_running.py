"""Real cells of a second each: what is shared, what is skipped, and how an interrupted one goes on."""

import functools
import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pmal import pipeline
from pmal._runtime.progress import Silent
from pmal._runtime.session import open_session
from pmal.benchmark.cells import fluctuation, running
from pmal.benchmark.cells.cell import FLUCTUATION, make_cell
from pmal.benchmark.cells.running import Places, count_training_images, run_cell
from pmal.benchmark.cells.shared import ClassifierStore, classifier_digest, classifier_keys
from pmal.benchmark.grid import Planned
from pmal.benchmark.ledger import Result
from pmal.benchmark.schedule import missing_cells, run_one_by_one
from pmal.config import Resources
from pmal.ensemble import classifiers
from pmal.errors import DataError, Interrupted
from pmal.mining.miner import mine_spaces
from pmal.reporting import evaluation
from pmal.run.run_folder import open_run
from tests.benchmark.ledgers import tiny

pytestmark = pytest.mark.slow


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Intervals are tested elsewhere."""
    quick = functools.partial(evaluation.open_set_metrics, resamples=10)
    monkeypatch.setattr(evaluation, "open_set_metrics", quick)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "out", tmp_path / "work")


@pytest.fixture
def session():
    return open_session(Resources(device="cpu"), Said())


@pytest.fixture
def trained(monkeypatch):
    """The names of all trainings of classifiers, as they are done."""
    names, train = [], classifiers.train_together

    def counted(title, trainings, *words):
        names.extend(training.name for training in trainings)
        return train(title, trainings, *words)

    monkeypatch.setattr(classifiers, "train_together", counted)
    return names


def run_all(cells, places, session):
    planned = [Planned(cell) for cell in cells]
    return run_one_by_one(missing_cells(planned, places, session.display), places, session)


def test_classifiers_are_trained_once_and_cells_are_skipped(places, session, trained):
    nearest = tiny("pmal", settings=["optimization.distance=nearest"])
    cells = [tiny("softmax"), tiny("pmal"), nearest, tiny("softmax", epochs=2), tiny("openmax")]
    assert run_all(cells, places, session) == []
    # The softmax of twice the epochs is another classifier; everything else shares the first two.
    assert trained == ["classifier 0", "classifier 1", "classifier 0"]
    softmax, pmal, other, _, openmax = (places.ledger.read(cell).record for cell in cells)
    # The classifier inside of PMAL has no threshold of its own, and so no decision.
    assert pmal["softmax"]["scores"] == {n: s for n, s in softmax["scores"].items() if n != "decision"}
    assert set(softmax["scores"]) >= {"neighbors", "typicality", "decision"}
    assert pmal["shared_classifiers"]["0"]["made_by"] == cells[0].name
    assert set(other["shared_classifiers"]) == {"0", "1"}
    assert openmax["shared_classifiers"]["0"]["seconds"] > 0
    assert openmax["images_per_s_median"] > 0  # of the training that it took over
    assert openmax["score"] == "openmax"
    assert other["scores"]["distance"] != pmal["scores"]["distance"]
    assert list((places.work / "cells").rglob("*.json")) == []
    times = {cell: places.ledger.path(cell).stat().st_mtime_ns for cell in cells}
    assert run_all(cells, places, session) == []
    assert times == {cell: places.ledger.path(cell).stat().st_mtime_ns for cell in cells}
    assert len(trained) == 3


def test_a_shared_classifier_changes_no_figure(places, session, tmp_path):
    alone = pipeline.fit(tiny("pmal").config(), tmp_path / "alone", session)
    run_all([tiny("softmax"), tiny("pmal")], places, session)
    found = places.ledger.read(tiny("pmal")).record
    assert {name: found[name] for name in alone} == alone


def test_the_record_of_a_cell(places, session):
    run_cell(Planned(tiny(), "table3", ("data.limit=40",)), places, session, lambda: 2)
    record = json.loads(places.ledger.path(tiny()).read_text())
    assert (record["grid"], record["beside"], record["score"]) == ("table3", 2, "logit")
    assert record["command"].startswith("pmal benchmark --grid table3 --data sample ")
    assert record["command"].endswith("--set data.limit=40")
    assert record["seconds"] > record["stages"]["classifier 0"] > 0
    assert record["images_per_s_median"] > 0
    assert record["peak_process_bytes"] > 2**20
    assert record["manifest"]["hardware"]["device"] == "cpu"
    assert "sha256" not in record["manifest"]  # of files that are gone
    assert record["shared_classifiers"] == {}
    assert set(record["scores"]["logit"]) >= {"auroc", "fpr95", "oscr"}
    assert count_training_images(tiny(), None) == 200  # 40 of the 240 are held out


def test_every_record_says_its_passes(places, session):
    nearest = ["optimization.epochs=2", "mining.per_class=2"]
    cells = {
        tiny("softmax", epochs=2): 2,
        tiny("proser"): 1 + 1.5,
        tiny("pmal", settings=nearest): 2 + 2 * (1 + 12 / 32),
        tiny("softmax").together(3): 3,
    }
    assert run_all(cells, places, session) == []
    found = {cell: places.ledger.read(cell) for cell in cells}
    assert {cell: result.record["passes"] for cell, result in found.items()} == cells
    # As an older record of it would have them.
    for result in found.values():
        older = {name: value for name, value in result.record.items() if name != "passes"}
        assert Result(result.cell, older).passes == result.passes


def test_the_images_of_data_that_are_not_here_are_not_counted(tmp_path):
    cell = make_cell("softmax", "cifar10", "arpl", 0, 0, recipe="strong")
    assert count_training_images(cell, str(tmp_path)) is None


def test_speeds_are_each_classifier_s_own_and_of_others_only_where_there_is_no_own(tmp_path):
    cell, notes = tiny("pmal"), tmp_path / "notes.jsonl"
    (tmp_path / "log.jsonl").write_text(
        "".join(
            json.dumps({"stage": f"classifier {index}", "epoch": epoch, "images_per_s": speed}) + "\n"
            for index, epoch, speed in ((0, 0, 1.0), (0, 1, 7.0), (0, 2, 100.0), (1, 0, 50.0))
        )
    )
    notes.write_text(json.dumps({"stage": "classifiers 0, 1", "seconds": 8.0}) + "\n")
    found = running._trainings(cell, cell.config(), tmp_path, notes)
    assert found == {
        0: {"made_by": cell.name, "seconds": 4.0, "images_per_s_median": 7.0},
        1: {"made_by": cell.name, "seconds": 4.0, "images_per_s_median": 50.0},
    }
    assert running._speed(tmp_path) == {"images_per_s_median": 28.5}
    store = SimpleNamespace(device="cpu", about=lambda key: found[key[1]])
    shared = running._shared(tiny("softmax"), tiny("softmax").config(), store, trained=False)
    assert shared == {"shared_classifiers": {"0": found[0]}, "images_per_s_median": 7.0}
    assert "images_per_s_median" not in running._shared(
        tiny("softmax"), tiny("softmax").config(), store, trained=True
    )
    assert running._shared(cell, cell.config(), store, trained=True) == {"shared_classifiers": {}}


def test_a_broken_record_is_told_of_and_computed_again(places, session):
    cells = [tiny(seed=0), tiny(seed=1)]
    run_all(cells, places, session)
    first, second = (places.ledger.path(cell) for cell in cells)
    before, kept = json.loads(first.read_text()), second.read_bytes()
    first.write_text(first.read_text()[:100])
    session.display.lines.clear()
    assert run_all(cells, places, session) == []
    assert str(first) in session.display.lines[0]
    assert "\n" not in session.display.lines[0]
    assert [line for line in session.display.lines[1:] if not line.startswith("warning")] == [
        session.display.lines[1]
    ]
    assert json.loads(first.read_text())["scores"] == before["scores"]
    assert second.read_bytes() == kept


def test_an_interrupted_cell_goes_on_where_it_stopped(places, session, trained, tmp_path):
    whole = Places(tmp_path / "whole", tmp_path / "other")
    run_cell(Planned(tiny("pmal")), whole, session)
    expected = whole.ledger.read(tiny("pmal")).record
    trained.clear()

    class Stopping(Said):
        def stage(self, name, total, unit, done=0):
            if name == "optimization":
                signal.raise_signal(signal.SIGTERM)
            return super().stage(name, total, unit, done)

    with pytest.raises(Interrupted):
        run_all([tiny("pmal")], places, replace(session, display=Stopping()))
    assert trained == ["classifier 0", "classifier 1"]
    assert places.ledger.read(tiny("pmal")) is None
    assert (places.folder(tiny("pmal")) / "run" / "optimization" / "checkpoint.json").is_file()
    assert run_all([tiny("pmal")], places, session) == []
    found = places.ledger.read(tiny("pmal")).record
    assert trained == ["classifier 0", "classifier 1"]
    assert (found["scores"], found["attempts"]) == (expected["scores"], 2)
    assert found["seconds"] > sum(found["stages"].values())  # of both attempts
    assert len(found["stages"]) > 2


def test_a_cell_that_fails_does_not_stop_the_others(places, session):
    failing = tiny(settings=["training.learning_rate=1e30"])
    assert run_all([failing, tiny()], places, session) == [failing.name]
    assert any(
        line.startswith(f"error: {failing.name}: classifier 0: loss") for line in session.display.lines
    )
    assert places.ledger.read(tiny()) is not None


def test_a_fault_of_a_method_is_shown_and_does_not_stop_the_others(places, session, monkeypatch):
    fit = pipeline.fit

    def faulty(config, *words, **options):
        if config.seed == 1:
            raise ZeroDivisionError("in the middle of it")
        return fit(config, *words, **options)

    monkeypatch.setattr(pipeline, "fit", faulty)
    assert run_all([tiny(seed=1), tiny()], places, session) == [tiny(seed=1).name]
    assert any("Traceback" in line and "in the middle of it" in line for line in session.display.lines)


def test_a_classifier_of_other_data_is_refused(places, session):
    """Should the data under a name change, the old classifiers are no longer theirs."""
    store = places.store(session.device)
    run_cell(Planned(tiny()), places, session)
    [old], [new] = (classifier_keys(tiny(seed=seed).config(), "cpu") for seed in (0, 1))
    other = tiny(seed=1, settings=["data.held_out=0.5"])
    [new] = classifier_keys(other.config(), "cpu")
    store.place(new).parent.mkdir(parents=True)
    store.place(old).rename(store.place(new))
    with pytest.raises(DataError, match="other classes or images"):
        run_cell(Planned(other), places, session)


def test_a_damaged_classifier_is_trained_again(places, session, trained):
    run_cell(Planned(tiny("softmax")), places, session)
    store = places.store(session.device)
    [key] = classifier_keys(tiny("softmax").config(), "cpu")
    file = store.place(key) / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    places.ledger.path(tiny("softmax")).unlink()
    assert run_all([tiny("softmax")], places, session) == []
    assert trained == ["classifier 0", "classifier 0"]
    assert key in store


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        (["mining.per_class=5"], True),
        (["optimization.weight=3"], True),
        (["ensemble.size=5"], True),
        (["rejection.accept=0.9"], True),
        (["training.learning_rate=0.05"], False),
        (["data.held_out=0.2"], False),
        (["encoder.projection=linear"], False),
    ],
)
def test_a_classifier_is_known_by_what_decides_it(settings, same):
    one, other = (classifier_digest(tiny("pmal", settings=s).config(), "cpu") for s in ([], settings))
    assert (one == other) == same
    assert one != classifier_digest(tiny("pmal").config(), "cuda")
    for method in ("softmax", "openmax", "proser"):
        assert one == classifier_digest(tiny(method).config(), "cpu")
    assert one != classifier_digest(tiny("cpn").config(), "cpu")


def test_splits_that_differ_in_their_unknown_classes_share_classifiers():
    def digest(source, split, family="arpl"):
        return classifier_digest(make_cell("pmal", source, family, split, 0, recipe="strong").config(), "cpu")

    for split in range(5):
        assert digest("cifar+10", split) == digest("cifar+50", split)
    assert digest("cifar10", 0) != digest("cifar10", 2)
    assert digest("cifar10", 0) != digest("cifar10", 1)  # the same classes, but in another order
    assert digest("cifar+10", 0, "neal") == digest("cifar+10", 1, "neal") != digest("cifar+10", 0)
    assert digest("mnist", 0) != digest("svhn", 0)


def test_a_run_of_other_settings_takes_nothing(places, session, tmp_path):
    """What the store gives lies where a run of these settings looks for it, and nowhere else."""
    run_cell(Planned(tiny("softmax")), places, session)
    store = ClassifierStore(places.work / "classifiers", "cpu")
    config = tiny("pmal", seed=7).config()
    store.give(config, tmp_path / "run")
    assert not (tmp_path / "run" / "classifiers").exists()
    with open_run(tmp_path / "run", config):
        pass


def test_fluctuation_of_prototypes(places, session, trained, monkeypatch):
    pairs = []
    monkeypatch.setattr(
        fluctuation,
        "mine_spaces",
        lambda spaces, *words, **options: pairs.append(spaces) or mine_spaces(spaces, *words, **options),
    )
    run_cell(Planned(tiny("pmal")), places, session)
    cell = replace(tiny("pmal", settings=["ensemble.size=6"]), measure=FLUCTUATION)
    run_cell(Planned(cell), places, session)
    assert trained == [f"classifier {index}" for index in range(6)]
    [result], broken = places.ledger.results(FLUCTUATION)
    assert (result.cell, broken) == (cell, [])
    record = result.record
    assert record["minings"] == 3 == len(pairs)
    assert len({z_ND.numpy().tobytes() for pair in pairs for z_ND, *_ in pair}) == 6
    assert 0 <= record["share_equal"] <= 1
    assert record["distance_to_nearest"] >= 0
    assert record["manifest"]["hardware"]
    assert record["passes"] == 6
    assert [r.cell for r in places.ledger.results()[0]] == [tiny("pmal")]
