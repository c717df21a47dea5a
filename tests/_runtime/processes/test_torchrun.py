"""How several processes meet and part: whose message is shown, and that nobody waits for what is gone."""

import atexit
import os
import signal
import sys
from datetime import timedelta
from importlib import import_module

import pytest
import torch

from pmal._runtime.processes import torchrun
from pmal._runtime.processes.launch import Launch
from pmal._runtime.processes.ranks import Lost, RankGroup
from pmal._runtime.processes.torchrun import fail_rank, finish_rank, open_ranks
from pmal._runtime.signals import STOPPING
from pmal.errors import DataError, PmalError, UsageError

MEETING = import_module("torch.distributed.rendezvous")
TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


class Ended(Exception):
    """The process is gone."""


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """What a process knows of the others: nothing yet."""
    monkeypatch.setattr(torchrun, "_opened", {})
    for name, value in {**TWO, "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    return torchrun._opened


@pytest.fixture
def failed(monkeypatch, capsys):
    """A process fails: what it says."""
    before = {number: signal.getsignal(number) for number in STOPPING}

    def end(code):
        raise Ended(code)

    def fail(error, message="error: it failed", code=1):
        with pytest.raises(Ended) as caught:
            fail_rank(error, message, code)
        assert caught.value.args == (code,)
        return capsys.readouterr().err

    monkeypatch.setattr(os, "_exit", end)
    yield fail
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_same_message_is_said_by_one_and_another_by_the_other(opened, failed):
    opened["store"] = torch.distributed.HashStore()
    assert failed(DataError("gone"), "error: gone", 3) == "error: gone\n"
    assert failed(DataError("gone"), "error: gone", 3) == ""
    assert failed(DataError("torn"), "error: torn", 3) == "error: torn\n"


def test_that_another_has_ended_is_said_only_where_nobody_said_why(opened, failed):
    opened["store"] = torch.distributed.HashStore()
    assert failed(Lost("another has ended"), "error: another has ended")
    opened["store"] = torch.distributed.HashStore()
    assert failed(DataError("gone"), "error: gone")
    assert failed(Lost("another has ended"), "error: another has ended") == ""


def test_without_the_store_everybody_says_what_is_wrong(opened, failed):
    class Gone:
        def set(self, *_):
            raise RuntimeError("connection closed")

    opened["store"] = Gone()
    assert failed(DataError("gone"), "error: gone") == "error: gone\n"


def test_before_they_meet_a_mistake_is_told_once_on_each_machine(failed, monkeypatch):
    assert failed(UsageError("no such option"), "error: no such option", 2) == ""
    assert failed(DataError("gone"), "error: gone", 3) == "error: gone\n"
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert failed(UsageError("no such option"), "error: no such option", 2) == "error: no such option\n"


def test_the_signal_by_which_torchrun_ends_the_others_cuts_no_message_short(failed):
    failed(DataError("gone"))
    assert [signal.getsignal(number) for number in STOPPING] == [signal.SIG_IGN] * len(STOPPING)


@pytest.mark.parametrize("lost", [False, True])
def test_whoever_is_done_waits_for_the_others_unless_they_are_gone(opened, monkeypatch, lost):
    done = []

    class Others:
        def largest(self, number):
            done.append("met")
            if lost:
                raise Lost("gone")

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: done.append("cleared up"))
    monkeypatch.setattr(sys.stdout, "flush", lambda: done.append("said"))
    finish_rank(0)  # alone, it goes on
    assert done == []
    opened["ranks"] = Others()
    with pytest.raises(Ended, match="3"):
        finish_rank(3)
    assert done == ["met", "cleared up", "said"]


def test_they_meet_once_and_part_in_order(monkeypatch):
    joined, registered = [], []

    def join(launch, device):
        joined.append((launch, device.type))
        return {"ranks": RankGroup(launch.rank, launch.size), "store": None}

    monkeypatch.setattr(torchrun, "_join", join)
    monkeypatch.setattr(atexit, "register", registered.append)
    ranks = open_ranks("cpu")
    assert open_ranks("cpu") is ranks
    assert (ranks.rank, ranks.size) == (1, 2)
    assert joined == [(Launch(1, 2, 1, 2), "cpu")]
    assert registered == [torchrun._leave]


@pytest.fixture
def met(monkeypatch):
    """What each meeting was told; all have one store."""
    meetings, store = [], torch.distributed.HashStore()
    monkeypatch.setattr(MEETING, "rendezvous", lambda *_, **__: iter([(store, 5, 8)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **about: meetings.append(about))
    return meetings


def test_those_that_are_started_again_do_not_meet_those_that_are_gone(met, monkeypatch):
    for attempt in (None, "1", "1"):
        if attempt:
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        torchrun._join(Launch(5, 8, 1, 4), torch.device("cpu"))
    first, second, beside = (about["store"] for about in met)
    first.set("said", "1")
    assert not second.check(["said"])
    second.set("said", "1")
    assert beside.check(["said"])


def test_each_has_its_number_and_an_hour_of_patience(met):
    torchrun._join(Launch(5, 8, 1, 4), torch.device("cpu"))
    [about] = met
    assert (about["rank"], about["world_size"]) == (5, 8)
    assert about["timeout"] == timedelta(hours=1)  # a mining or a reading by the first alone


def test_a_port_that_is_none_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "http")
    with pytest.raises(PmalError, match="8 processes could not meet at node0:http: ") as caught:
        torchrun._join(Launch(5, 8, 1, 4), torch.device("cpu"))
    assert "\n" not in str(caught.value)
