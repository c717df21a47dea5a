"""Several cells at a time: none waits for nothing, none trains what another one is training."""

import contextlib
import errno
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch

from pmal._runtime.session import open_session
from pmal.benchmark import schedule
from pmal.benchmark.cells.running import Places
from pmal.benchmark.cells.shared import classifier_keys
from pmal.benchmark.grid import Planned
from pmal.benchmark.schedule import _next_ready, _Running, run_at_once, run_one_by_one
from pmal.config import Resources
from pmal.errors import DataError, Interrupted, UsageError
from tests.benchmark.ledgers import tiny

CPU = Resources(device="cpu")


class Noted:
    def __init__(self):
        self.said = []
        self.say = self.said.append


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
    # Whoever needs the one that is in training now waits for it, though the first is there.
    other = tiny("pmal", settings=["optimization.weight=3"])
    assert _next_ready([1], [_Running(None, 0, still)], [None, Planned(other)], places, CPU) is None


def test_a_cell_without_room_on_the_disk_is_told_of_in_one_line(tmp_path, monkeypatch):
    def fail(*words):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "weights"))

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
        schedule._work(Planned(cell), places, CPU, 0, [0], [])
    assert ended.value.code == 143
    assert capsys.readouterr().err == f"error: {cell.name}: interrupted: {schedule.GO_ON}\n"


@pytest.fixture
def processes(monkeypatch):
    """Processes that are none: each ends, with the code that it is told to, when `schedule` waits."""
    found = SimpleNamespace(started=[], most=0, codes={}, stopped=[], ends=lambda running: running[:1])

    class Process:
        exitcode = None

        def __init__(self, target, args):
            assert target is schedule._work
            self.planned, _, _, self.position, self.beside, _ = args
            self.sentinel = self

        def start(self):
            found.started.append(self)
            found.most = max(found.most, len(running()))

        def terminate(self):
            found.stopped.append(("asked", self.position))

        def join(self):
            found.stopped.append(("ended", self.position))

    def running():
        return [one for one in found.started if one.exitcode is None]

    def wait(sentinels, timeout):
        assert sentinels == running()
        for one in found.ends(running()):
            one.exitcode = found.codes.get(one.position, 0)

    context = SimpleNamespace(Process=Process, Array=lambda kind, count: [0] * count)
    monkeypatch.setattr(schedule.multiprocessing, "get_context", lambda method: context)
    monkeypatch.setattr(schedule, "wait", wait)
    return found


def planned_cells(*seeds):
    return [Planned(tiny("softmax", seed=seed)) for seed in seeds]


def test_as_many_as_asked_for_run_at_once_and_each_knows_how_many_did(processes, tmp_path):
    planned, noted = planned_cells(0, 1, 2, 3), Noted()
    processes.ends = lambda running: running[:2] if len(processes.started) == 3 else running[-1:]
    assert run_at_once(planned, Places(tmp_path / "out", tmp_path / "work"), CPU, 3, noted) == []
    assert processes.most == 3
    assert [one.position for one in processes.started] == [0, 1, 2, 3]
    # The third ran beside two, and later beside the fourth alone.
    assert processes.started[0].beside == [2, 2, 2, 1]
    assert noted.said == [f"cell {n} of 4: {one.cell.name}" for n, one in enumerate(planned, 1)]


def test_a_cell_that_waits_lets_others_pass(processes, tmp_path):
    planned = [Planned(cell) for cell in (tiny("softmax"), tiny("openmax"), tiny("softmax", seed=1))]
    assert run_at_once(planned, Places(tmp_path / "out", tmp_path / "work"), CPU, 3, Noted()) == []
    assert [one.position for one in processes.started] == [0, 2, 1]


def test_whatever_ends_badly_has_failed_and_a_killed_one_is_told_of(processes, tmp_path):
    processes.codes = {0: 3, 1: -9, 2: 1}
    planned, noted = planned_cells(0, 1, 2, 3), Noted()
    failed = run_at_once(planned, Places(tmp_path / "out", tmp_path / "work"), CPU, 2, noted)
    names = [one.cell.name for one in planned]
    assert failed == names[:3]
    [line] = [line for line in noted.said if line.startswith("error: ")]  # the others have said it themselves
    assert line.startswith(f"error: {names[1]}: its process was killed (SIGKILL; ")


def test_an_interruption_reaches_every_cell_before_any_is_waited_for(processes, tmp_path):
    def interrupt(running):
        raise Interrupted(signal.SIGINT, "interrupted")

    processes.ends = interrupt
    with pytest.raises(Interrupted):
        run_at_once(planned_cells(0, 1, 2), Places(tmp_path / "out", tmp_path / "work"), CPU, 2, Noted())
    assert processes.stopped == [("asked", 0), ("asked", 1), ("ended", 0), ("ended", 1)]


@pytest.fixture
def shared(processes, monkeypatch):
    """What happens in which order, with a GPU that there need not be."""
    noted = []

    @contextlib.contextmanager
    def shared_gpu():
        noted.append("shared")
        try:
            yield True
        finally:
            noted.append(("ended", len(processes.started), len(processes.stopped)))

    monkeypatch.setattr(schedule, "shared_gpu", shared_gpu)
    monkeypatch.setattr(schedule, "choose_device", torch.device)
    return noted


def test_cells_share_a_gpu_from_the_first_to_the_last(processes, shared, tmp_path):
    places, gpu = Places(tmp_path / "out", tmp_path / "work"), Resources(device="cuda:0")
    processes.ends = lambda running: running[:1] if shared == ["shared"] else pytest.fail("it ended too soon")
    assert run_at_once(planned_cells(0, 1, 2), places, gpu, 2, Noted()) == []
    assert shared == ["shared", ("ended", 3, 0)]


def test_an_interruption_ends_the_cells_before_what_they_share(processes, shared, tmp_path):
    def interrupt(running):
        raise Interrupted(signal.SIGINT, "interrupted")

    processes.ends = interrupt
    places, gpu = Places(tmp_path / "out", tmp_path / "work"), Resources(device="cuda")
    with pytest.raises(Interrupted):
        run_at_once(planned_cells(0, 1, 2), places, gpu, 2, Noted())
    assert shared == ["shared", ("ended", 2, 4)]


def test_without_a_gpu_nothing_is_shared(processes, shared, tmp_path):
    run_at_once(planned_cells(0, 1), Places(tmp_path / "out", tmp_path / "work"), CPU, 2, Noted())
    assert shared == []


@pytest.fixture
def child(monkeypatch, capsys):
    """What `_work` does in its process when the cell fails: the code, and what is said."""
    done = []

    def end(code):
        raise SystemExit(code)

    def work(error):
        def fail(*words):
            done.append("work")
            raise error

        monkeypatch.setattr(schedule, "run_cell", fail)
        with pytest.raises(SystemExit) as caught:
            schedule._work(Planned(tiny()), None, CPU, 0, [0], [])
        return caught.value.code, capsys.readouterr().err

    monkeypatch.setattr(schedule.os, "_exit", end)
    monkeypatch.setattr(schedule.os, "setpgrp", lambda: done.append("group"))
    monkeypatch.setattr(schedule, "leave_interrupts_to_parent", lambda: done.append("interrupts"))
    monkeypatch.setattr(schedule, "raise_on_signals", lambda advice: done.append("signals"))
    monkeypatch.setattr(schedule, "stop_with_parent", lambda: done.append("parent"))
    work.done = done
    return work


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DataError("a.png: torn"), 3, "a.png: torn"),
        (UsageError("no such thing"), 2, "no such thing"),
        (OSError(errno.ENOSPC, "No space left on device", "weights"), 1, "No space left"),
    ],
)
def test_a_cell_that_fails_in_its_process_says_why_and_ends_with_its_code(child, error, code, text):
    ended, said = child(error)
    assert ended == code
    assert said.startswith(f"error: {tiny().name}: ")
    assert text in said
    assert said.count("\n") == 1
    # Ctrl-C in a terminal reaches a cell once, by its parent.
    assert child.done == ["group", "interrupts", "signals", "parent", "work"]
