"""What a session refuses before any work begins, and what is each process's of several."""

import pytest

from pmal._runtime import session
from pmal._runtime.processes import torchrun
from pmal._runtime.processes.launch import usable_cores
from pmal._runtime.processes.ranks import RankGroup
from pmal._runtime.progress import Lines, Silent
from pmal._runtime.session import open_session, open_shared_session
from pmal.config import Resources
from pmal.errors import UsageError


def test_more_workers_than_a_machine_can_start_are_refused():
    most = 8 * usable_cores()
    assert open_session(Resources(device="cpu", workers=most)).resources.workers == most
    with pytest.raises(UsageError, match=f"--workers {most + 1} are too many .* choose {most} or fewer"):
        open_session(Resources(device="cpu", workers=most + 1))


@pytest.fixture
def one_of_two(monkeypatch):
    """A process that torchrun started beside another one, on a machine of four cores."""

    def start(rank, cores=4):
        names = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        for name, value in (names | {"MASTER_ADDR": "localhost", "MASTER_PORT": 1}).items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torchrun, "open_ranks", lambda device: RankGroup(rank, 2))
        monkeypatch.setattr(session, "usable_cores", lambda: cores)

    return start


@pytest.mark.parametrize(("cores", "given", "workers"), [(4, 0, 2), (1, 0, 1), (4, 3, 3)])
def test_processes_share_the_cores_of_their_machine(one_of_two, cores, given, workers):
    one_of_two(1, cores)
    found = open_shared_session(Resources(device="cpu", workers=given), Silent())
    assert found.resources.workers == workers
    assert found.ranks.part == (1, 2)


def test_a_process_alone_leaves_the_number_of_workers_open():
    assert open_shared_session(Resources(device="cpu"), Silent()).resources.workers == 0


def test_only_the_first_of_several_has_a_display(one_of_two):
    display = Lines()
    for rank, kind in ((0, Lines), (1, Silent)):
        one_of_two(rank)
        assert type(open_shared_session(Resources(device="cpu"), display).display) is kind


def test_display_and_log_are_those_that_were_given():
    display, logged = Lines(), []
    found = open_session(Resources(device="cpu"), display)
    assert found.display is display
    found.log(step=1)
    found.logging_to(lambda **event: logged.append(event)).log(step=2)
    assert logged == [{"step": 2}]
    assert type(open_session().display) is Silent
