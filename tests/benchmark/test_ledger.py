"""Records of the ledger: read back, and reported where they are broken."""

import json
from dataclasses import replace

import pytest

from pmal.benchmark.cells.cell import ENSEMBLE, FIT, FLUCTUATION
from pmal.benchmark.ledger import Ledger
from pmal.errors import DataError
from tests.benchmark.ledgers import about, made_up, mining_record, record, tiny


def test_what_is_written_is_read(tmp_path):
    cell = tiny("pmal")
    ledger = made_up(tmp_path, record(cell, 0.875, logit=0.5, distance=0.75))
    found = ledger.read(cell)
    assert found.cell == cell
    assert (found.accuracy(), found.auroc("distance"), found.auroc("energy")) == (0.875, 0.75, None)
    assert found.score == "distance"
    assert ledger.read(tiny("softmax")) is None


def test_the_record_says_which_score_is_the_methods_own(tmp_path):
    cell = tiny("softmax")
    [result] = made_up(tmp_path, record(cell, logit=0.5) | {"score": "energy"}).results()[0]
    assert result.score == "energy"
    [result] = made_up(tmp_path, record(cell, logit=0.5)).results()[0]
    assert result.score == "logit"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"about": {"split": "arpl/0"}}', '{"cell": {"method": "pmal"}}']
)
def test_broken_records_are_one_line_each_and_the_others_stay(tmp_path, text):
    ledger = made_up(tmp_path, record(tiny("softmax"), logit=0.5), record(tiny("pmal"), logit=0.5))
    ledger.path(tiny("pmal")).write_text(text)
    with pytest.raises(DataError) as caught:
        ledger.read(tiny("pmal"))
    assert "\n" not in str(caught.value)
    results, broken = ledger.results()
    assert [result.cell.method for result in results] == ["softmax"]
    assert len(broken) == 1
    assert ledger.path(tiny("pmal")).name in broken[0]


def test_a_record_without_a_figure_is_broken(tmp_path):
    found = record(tiny(), logit=0.5)
    found["scores"]["logit"] = {"auroc": {"value": None}}
    ledger = made_up(tmp_path, found)
    assert len(ledger.results()[1]) == 1


def test_a_record_under_another_name_is_refused(tmp_path):
    ledger = Ledger(tmp_path)
    path = ledger.path(tiny(seed=1))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record(tiny(seed=0))))
    with pytest.raises(DataError, match="another cell"):
        ledger.read(tiny(seed=1))


def test_a_copy_under_another_name_is_not_counted_twice(tmp_path):
    ledger = made_up(tmp_path, record(tiny(), logit=0.5))
    copy = ledger.path(tiny()).with_name("copy.json")
    copy.write_bytes(ledger.path(tiny()).read_bytes())
    results, broken = ledger.results()
    assert len(results) == 1
    assert "copy.json" in broken[0]
    assert "another cell" in broken[0]


@pytest.mark.parametrize(
    "damage",
    [
        {"softmax": {}},
        {"softmax": {"accuracy": {"value": 0.5}}},
        {"cell": tiny().about() | {"epochs": "1"}},
        {"passes": None},
        {"passes": "many"},
        {"passes": 0},
        {"accuracy": {}},
        {"accuracy": {"value": None}},
        {"accuracy": {"value": "good"}},
        {"scores": ["logit"]},
    ],
)
def test_what_a_table_would_stumble_over_is_broken(tmp_path, damage):
    ledger = made_up(tmp_path, record(tiny(), logit=0.5))
    ledger.write(tiny(), record(tiny(), logit=0.5) | damage)
    assert [len(found) for found in ledger.results()] == [0, 1]


def passes(folder, record, *measures):
    [result] = made_up(folder, record).results(*measures)[0]
    return result.passes


def test_a_record_says_its_passes(tmp_path):
    assert passes(tmp_path, record(tiny("pmal"), logit=0.5) | {"passes": 36.5}) == 36.5


def test_the_passes_of_an_older_record_are_counted(tmp_path):
    """6 classes with 3 prototypes each, in batches of 32; of 20 classes more than two batches would join."""
    pmal = tiny("pmal", epochs=10, settings=["ensemble.size=4"])
    assert passes(tmp_path / "a", record(pmal, logit=0.5)) == 40 + 10 * (1 + 18 / 32)
    assert passes(tmp_path / "b", record(pmal, logit=0.5) | about(pmal, 20)) == 40 + 10 * (1 + 60 / 32)
    assert passes(tmp_path / "c", record(tiny("proser", epochs=10), logit=0.5)) == 10 + 1.5 * 10
    assert passes(tmp_path / "d", record(tiny("softmax", epochs=10), logit=0.5)) == 10
    assert passes(tmp_path / "e", record(tiny("softmax", epochs=10).together(3), logit=0.5), ENSEMBLE) == 30
    longer = tiny("pmal", epochs=10, settings=["optimization.epochs=30"])
    assert passes(tmp_path / "f", record(longer, logit=0.5)) == 20 + 30 * (1 + 18 / 32)


def test_what_no_longer_says_its_passes_has_none(tmp_path):
    cell = replace(tiny("pmal"), recipe="mine@01234567")  # a file that is gone
    assert passes(tmp_path / "a", record(tiny("pmal"), logit=0.5) | {"cell": cell.about()}) is None
    silent = record(tiny("pmal"), logit=0.5)
    del silent["about"]
    assert passes(tmp_path / "b", silent) is None


def test_ensembles_are_read_where_they_are_asked_for(tmp_path):
    ensemble = tiny("softmax").together(3)
    ledger = made_up(tmp_path, record(tiny("softmax"), logit=0.5), record(ensemble, 0.9, logit=0.75))
    assert [result.cell for result in ledger.results()[0]] == [tiny("softmax")]
    assert [result.cell for result in ledger.results(FIT, ENSEMBLE)[0]] == [tiny("softmax"), ensemble]
    assert ledger.read(ensemble).auroc("logit") == 0.75


def test_an_ensemble_of_no_size_is_broken(tmp_path):
    ledger = made_up(tmp_path, record(tiny("softmax").together(3), logit=0.5))
    [path] = (tmp_path / "ensemble").iterdir()
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"cell": found["cell"] | {"settings": []}}))
    assert [len(found) for found in ledger.results(ENSEMBLE)] == [0, 1]


def test_half_a_fluctuation_is_broken(tmp_path):
    cell = replace(tiny("pmal"), measure=FLUCTUATION)
    ledger = made_up(tmp_path, {"cell": cell.about(), "share_equal": 0.5})
    assert [len(found) for found in ledger.results(FLUCTUATION)] == [0, 1]


def test_a_fluctuation_of_no_number_is_broken(tmp_path):
    whole = mining_record()
    ledger = made_up(tmp_path, whole)
    assert [len(found) for found in ledger.results(FLUCTUATION)] == [1, 0]
    [path] = tmp_path.glob("*/*.json")
    path.write_text(json.dumps(whole | {"cell": whole["cell"] | {"seed": "0"}}))
    assert [len(found) for found in ledger.results(FLUCTUATION)] == [0, 1]


def test_other_measurements_are_not_cells(tmp_path):
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "cpu.json").write_text("{}")
    assert Ledger(tmp_path).results() == ([], [])
