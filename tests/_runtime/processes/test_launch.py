"""What the environment says of other processes, and of the cores that this one may use."""

import os

import pytest

from pmal._runtime.processes.launch import Launch, is_alone, read_launch, refuse_ranks, usable_cores
from pmal.errors import UsageError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch):
    def give(**values):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return give


@pytest.mark.parametrize(
    "values", [{}, {"WORLD_SIZE": 8}, {"RANK": 0}, {"RANK": 0, "WORLD_SIZE": 1}, {"LOCAL_RANK": 3}]
)
def test_words_that_other_programs_leave_in_the_environment_make_no_group(environment, values):
    environment(**values)
    assert is_alone()
    assert read_launch() == Launch()


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_group_without_a_place_to_meet_is_refused(environment, missing):
    values = dict(zip(NAMES, (1, 2, 1, 2, "node0", 29500), strict=True))
    environment(**values)
    assert read_launch() == Launch(1, 2, 1, 2)
    with pytest.raises(UsageError, match="start others without torchrun"):
        refuse_ranks()
    environment(**{name: value for name, value in values.items() if name != missing})
    assert not is_alone()
    with pytest.raises(UsageError, match="start it with torchrun"):
        read_launch()


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3}, raising=False)
    assert usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
