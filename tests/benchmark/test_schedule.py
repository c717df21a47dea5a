"""Several cells at a time: none waits for nothing, none trains what another one is training."""

import errno
import os
import signal
import sys

import pytest

from pmal._runtime.session import open_session
from pmal.benchmark import schedule
from pmal.benchmark.grid import Planned
from pmal.benchmark.running import Places
from pmal.benchmark.schedule import _next_ready, _Running, run_one_by_one
from pmal.benchmark.shared import classifier_keys
from pmal.config import Resources
from tests.benchmark.ledgers import tiny

CPU = Resources(device="cpu")


def test_a_cell_waits_for_the_classifier_that_another_one_trains(tmp_path):
    places = Places(tmp_path / "out", tmp_path / "work")
    planned = [Planned(cell) for cell in (tiny("softmax"), tiny("pmal"), tiny("softmax", seed=1))]
    position, training = _next_ready([0, 1, 2], [], planned, places, CPU)
    assert (position, len(training)) == (0, 1)
    running = [_Running(None, 0, training)]
    assert _next_ready([1, 2], running, planned, places, CPU)[0] == 2
    assert _next_ready([1], running, planned, places, CPU) is None
    # The first cell goes on, but its classifier is there: the second need not wait for the rest of it.
    place = tmp_path / "work" / "classifiers" / training[0][0] / "0"
    place.mkdir(parents=True)
    (place / "weights.json").write_text("{}")
    position, still = _next_ready([1], running, planned, places, CPU)
    assert position == 1
    assert still == classifier_keys(tiny("pmal").config(), "cpu")[1:]


def test_a_cell_without_room_on_the_disk_is_told_of_in_one_line(tmp_path, monkeypatch):
    def fail(*words):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "weights"))

    class Noted:
        def __init__(self):
            self.said = []
            self.say = self.said.append

    monkeypatch.setattr(schedule, "run_cell", fail)
    cell, places = tiny("softmax"), Places(tmp_path / "out", tmp_path / "work")
    noted = Noted()
    assert run_one_by_one([Planned(cell)], places, open_session(CPU, noted)) == [cell.name]
    [_, line] = noted.said
    assert "\n" not in line
    assert "No space left" in line
    assert "weights" in line


def test_an_interrupted_cell_in_a_process_of_its_own_is_one_line(tmp_path, handlers, monkeypatch, capsys):
    monkeypatch.setattr(os, "setpgrp", lambda: None)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(schedule, "run_cell", lambda *words: signal.raise_signal(signal.SIGTERM))
    cell, places = tiny("softmax"), Places(tmp_path / "out", tmp_path / "work")
    with pytest.raises(SystemExit) as ended:
        schedule._work(Planned(cell), places, CPU, 0, [0])
    assert ended.value.code == 143
    assert capsys.readouterr().err == f"error: {cell.name}: interrupted: {schedule.GO_ON}\n"
