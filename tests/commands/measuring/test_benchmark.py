"""`pmal benchmark` as a user meets it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pmal._runtime.session import open_session
from pmal.benchmark import schedule
from pmal.benchmark.cells.cell import make_cell
from pmal.benchmark.cells.running import Places
from pmal.benchmark.grid import Planned
from pmal.commands.measuring.benchmark import _run
from pmal.config import Resources
from pmal.data.sources import readers as registry
from tests.benchmark.ledgers import made_up, options, record, tiny
from tests.support.command_line import assert_one_line_error
from tests.support.hanging import HANGING

pytestmark = pytest.mark.slow

LEDGER = Path(__file__).parents[3] / "benchmarks" / "results"


def test_dry_run_run_and_table(tmp_path, call):
    places = ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    words = ["benchmark", *options("--methods", "softmax"), *places, "--seeds", "0,1"]
    code, shown, error = call(*words, "--dry-run")
    assert code == 0, error
    assert tiny().name in shown
    assert shown.count("no estimate") == 2
    assert not (tmp_path / "out").exists()
    code, shown, error = call(*words)
    assert code == 0, error
    assert "2 cells, 0 in the ledger, 0 failed, 2 computed" in shown
    assert "cell 2 of 2" in error
    code, shown, _ = call(*words, "--seeds", "0-2", "--dry-run")
    assert shown.count("in the ledger") == 2
    [duration] = re.findall(r"1 training, (.+)\n", shown)  # seconds, or minutes on a busy machine
    assert f"1 of 3 cells to compute: {duration} of training" in shown
    listed = json.loads(call(*words, "--seeds", "0-2", "--dry-run", "--json")[1])
    assert [one["done"] for one in listed] == [True, True, False]
    assert [one["seconds"] is None for one in listed] == [True, True, False]
    code, shown, _ = call(*words, "--json")
    assert json.loads(shown) == {"cells": 2, "in the ledger": 2, "failed": 0, "computed": 0}
    code, shown, _ = call("benchmark", "table", "--out", tmp_path / "out")
    assert code == 0
    assert "Methods; family=arpl" in shown
    assert not list((tmp_path / "work" / "cells").rglob("*.json"))


def test_two_cells_at_a_time(tmp_path):
    places = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--keep"]
    words = [*options("--methods", "softmax"), *places, "--seeds", "0,1", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "pmal", "benchmark", *words],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == 0, done.stderr
    assert "cell 1: classifier 0" in done.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/*.json")]
    assert [found["beside"] for found in records] == [1, 1]
    assert len(list((tmp_path / "work" / "cells").glob("*/*/run/metrics.json"))) == 2


def test_data_of_one_s_own_are_looked_for_where_they_lie(tmp_path, monkeypatch):
    opened = []
    (tmp_path / "pets").mkdir()
    cell = make_cell("pmal", str(tmp_path / "pets"), "all", 0, 0, recipe="strong")
    monkeypatch.setattr(registry, "open_source", lambda source, root: opened.append((source, root)))
    monkeypatch.setattr(schedule, "run_one_by_one", lambda missing, places, session: missing)
    session = open_session(Resources(device="cpu", data_root=str(tmp_path)))
    places = Places(tmp_path / "out", tmp_path / "work")
    assert _run([Planned(cell)] * 2, places, session, 1) == [Planned(cell)] * 2
    assert opened == [(str(tmp_path / "pets"), str(tmp_path))]
    assert places.work.is_dir()


def test_a_failed_cell_ends_with_its_name(tmp_path, call):
    places = ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    words = options("--methods", "softmax", "--set", "training.learning_rate=1e30")
    code, shown, error = call("benchmark", *words, *places)
    assert code == 1
    assert shown == "1 cells, 0 in the ledger, 1 failed, 0 computed\n"
    assert error.splitlines()[-1].startswith("error: 1 of 1 cells failed: softmax/sample-arpl0")


def test_mistakes_are_told_in_one_line(tmp_path, call):
    out = ["--out", tmp_path / "out", "--work", tmp_path / "work"]
    for words, code, part in (
        (["--methods", "softmx"], 2, "did you mean 'softmax'"),
        (["--data", "tinyimagnet"], 2, "did you mean 'tinyimagenet'"),
        (["--data", "mnist", "--splits", "11"], 2, "has no split 11"),
        (["--grid", "table6"], 2, "did you mean 'table"),
        (["--data", "cifar10", "--data-root", tmp_path], 3, "--data-root"),
        (["table", "--format", "markdwn"], 2, "did you mean 'markdown'"),
        (["table", "--out", tmp_path / "none"], 2, "no such folder"),
    ):
        where = [] if words[0] == "table" else out
        assert_one_line_error(call("benchmark", *words, *where), code, part)
    assert not (tmp_path / "work").exists()


def test_tables_of_the_paper_in_every_format(tmp_path, call):
    code, text, error = call("benchmark", "table", "--paper", "--format", "markdown", "--out", LEDGER)
    assert (code, error) == (0, "")
    assert all(f"**Table {number}" in text for number in range(1, 6))
    tables = json.loads(call("benchmark", "table", "--table", "4", "--json", "--out", LEDGER)[1])
    assert {table["table"] for table in tables} == {4}
    code, text, _ = call("benchmark", "table", "--table", "4", "--format", "csv", "--out", LEDGER)
    assert text.startswith("table,family,")
    assert '"Table 4, quality or diversity' in text


def test_a_broken_record_is_named_and_the_table_stands(tmp_path, call):
    ledger = made_up(tmp_path, record(tiny("softmax"), logit=0.5), record(tiny("pmal"), logit=0.5))
    ledger.path(tiny("pmal")).write_text("{")
    code, text, error = call("benchmark", "table", "--out", tmp_path)
    assert code == 0
    assert error.startswith("warning: ")
    assert error.count("\n") == 1
    assert "softmax, 1" in text
