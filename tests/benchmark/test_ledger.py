"""Records of the ledger: read back, and reported where they are broken."""

import json
from dataclasses import replace

import pytest

from pmal.benchmark.cells import FLUCTUATION
from pmal.benchmark.ledger import Ledger
from pmal.errors import DataError
from tests.benchmark.ledgers import made_up, mining_record, record, tiny


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
