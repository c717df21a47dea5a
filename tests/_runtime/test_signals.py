import copy
import multiprocessing
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from pmal._runtime.signals import (
    STOPPING,
    deferred_signals,
    leave_interrupts_to_parent,
    stop_with_parent,
    uninterrupted_starts,
)
from pmal.errors import Interrupted
from tests.support.hanging import HANGING


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_waits_for_the_safe_place(number, code):
    before = signal.getsignal(number)
    with deferred_signals() as stop:
        stop.check("nothing yet")
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match="step 5 is saved") as caught:
            stop.check("step 5 is saved")
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is before


def test_a_second_signal_stops_at_once():
    with deferred_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="twice"):
            os.kill(os.getpid(), signal.SIGINT)


def test_who_is_patient_takes_a_second_signal_for_the_first():
    with deferred_signals(patient=True) as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="step 5 is saved"):
            stop.check("step 5 is saved")


def blocked():
    return signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(STOPPING)


def test_a_signal_while_processes_start_comes_once_they_have():
    started = []

    def start():
        with uninterrupted_starts():
            assert blocked() == set(STOPPING)
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)  # to this thread: another one might hear it any time later
            started.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started
    assert not blocked()


def test_a_signal_before_processes_start_waits_too(monkeypatch):
    """The helper of multiprocessing, whose start lets signals through, is started first."""
    started = []
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", interrupt)

    def start():
        with uninterrupted_starts():
            started.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started


def test_a_worker_leaves_interrupts_to_its_parent_but_can_be_ended():
    before = signal.getsignal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        leave_interrupts_to_parent()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert not blocked()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_caught():
    failures = []

    def work():
        try:
            with deferred_signals() as stop:
                stop.check("fine")
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


def test_a_signal_that_nobody_looked_at_is_not_lost():
    def ignore_the_request():
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        ignore_the_request()


def test_a_signal_in_a_destructor_is_not_lost(raising):
    ended = []

    class Worker:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append(True)

    def end_worker():
        Worker()
        time.sleep(HANGING)

    with pytest.raises(Interrupted, match="interrupted: go on"):
        end_worker()
    assert ended


@pytest.mark.usefixtures("raising")
def test_a_signal_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    """An exception in the middle of it would abort the process, if the library is of C++."""
    lines = "import os, signal", "os.kill(os.getpid(), signal.SIGINT)", "whole = True"
    (tmp_path / "interrupted_library.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def work():
        import interrupted_library

        assert interrupted_library.whole
        time.sleep(HANGING)

    with pytest.raises(Interrupted, match="interrupted: go on"):
        work()
    assert sys.modules.pop("interrupted_library").whole


def test_an_interruption_reaches_another_process_whole():
    """As joblib hands on what ends one of its workers: one that cannot be made anew breaks the whole pool."""
    sent = Interrupted(signal.SIGTERM, "interrupted: go on")
    there = copy.copy(sent)  # by what pickle does, too
    assert (type(there), str(there), there.exit_code) == (Interrupted, "interrupted: go on", 143)
    assert not isinstance(there, Exception)


def test_a_process_whose_parent_is_gone_stops_as_if_asked_to(monkeypatch):
    ended, sent = threading.Event(), []
    parent = SimpleNamespace(join=ended.wait)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    asked = threading.Event()
    monkeypatch.setattr(os, "kill", lambda *words: sent.append((*words, ended.is_set())) or asked.set())
    stop_with_parent()
    ended.set()
    assert asked.wait(HANGING)
    assert sent == [(os.getpid(), signal.SIGTERM, True)]
