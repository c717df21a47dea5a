import contextlib
import errno
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from pmal.data.feeding import workers as feeding
from pmal.data.feeding.workers import Workers
from pmal.errors import DataError, PmalError
from tests.data.feeding.squares import PLAN, Squares
from tests.support.hanging import HANGING, wait_for

SQUARES = [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81, 100, 121]]
IN_PROC = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_plan(count):
    workers = Workers(Squares(), count)
    assert list(workers.results(PLAN)) == SQUARES
    assert list(workers.results(PLAN[::-1])) == SQUARES[::-1]
    assert list(workers.results([])) == []


def test_processes_wait_for_the_next_plan_until_others_are_asked_or_they_are_ended():
    first, second = Workers(Squares(), 2), Workers(Squares(), 1)
    started = []
    for workers in (first, first, second):
        assert list(workers.results(PLAN)) == SQUARES
        started.append({process.pid for process in multiprocessing.active_children()})
    assert started[0] == started[1]
    assert not started[1] & started[2]
    assert list(map(len, started)) == [2, 2, 1]
    second.end()
    assert multiprocessing.active_children() == []


def test_an_error_is_the_worker_s_own_line_and_the_next_plan_goes_on():
    workers = Workers(Squares(bad=5), 1)
    with pytest.raises(DataError, match=r"^image 5: gone$"):
        list(workers.results(PLAN))
    assert list(workers.results(PLAN[2:])) == SQUARES[2:]


class Copied(Squares):
    """Cannot be made ready for workers."""

    def __getstate__(self):
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()  # it may take long: Ctrl-C is heard
        raise DataError("/tmp: no room for a copy: set TMPDIR")


def test_an_error_before_they_start_keeps_its_words():
    with pytest.raises(DataError, match=r"^/tmp: no room for a copy: set TMPDIR$"):
        list(Workers(Copied(), 1).results(PLAN))


def test_one_that_dies_is_told_of_in_one_line_and_its_end_is_left_to_us():
    """torch would have its own handler of SIGCHLD raise wherever the program is."""
    before, workers = signal.getsignal(signal.SIGCHLD), Workers(Squares(), 1)
    list(workers.results(PLAN))
    assert signal.getsignal(signal.SIGCHLD) is before
    [process] = multiprocessing.active_children()
    process.kill()
    with pytest.raises(PmalError, match=r"^a process that decodes images died: [^\n]*fewer --workers$"):
        list(workers.results(PLAN))
    assert list(workers.results(PLAN)) == SQUARES


def test_the_environment_of_the_server_is_its_own(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    mine = dict(os.environ)
    with feeding._server_settings():
        assert (os.environ["PYTHONSAFEPATH"], os.environ["OPENBLAS_NUM_THREADS"]) == ("1", "1")
    assert dict(os.environ) == mine


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("AF_UNIX path too long"), r"\(AF_UNIX path too long\): set TMPDIR to a shorter path"),
        (OSError(errno.EAGAIN, "no more processes"), r"\(no more processes\): try fewer --workers"),
        (EOFError("unexpected EOF"), r"\(the one they are forked from has ended\): try fewer --workers"),
    ],
)
def test_those_that_cannot_start_are_told_of_in_one_line(error, words, monkeypatch):
    def fail(loader):
        raise error

    workers = Workers(Squares(), 1)
    with monkeypatch.context() as patched:
        patched.setattr(DataLoader, "__iter__", fail)
        with pytest.raises(PmalError, match=rf"^processes that decode images cannot start {words}$"):
            list(workers.results(PLAN))
    assert list(workers.results(PLAN)) == SQUARES


@IN_PROC
def test_they_come_from_one_process_that_has_torch_and_no_threads():
    """Were each to import it, 16 of them would take most of a minute; a fork of this one might hang."""
    workers = Workers(Squares(), 3)
    list(workers.results(PLAN))
    status = [
        Path(f"/proc/{process.pid}/status").read_text() for process in multiprocessing.active_children()
    ]
    [parent] = {re.search(r"PPid:\s*(\d+)", text)[1] for text in status}
    assert len(status) == 3
    assert parent != str(os.getpid())
    assert "libtorch" in Path(f"/proc/{parent}/maps").read_text()
    assert re.search(r"Threads:\s*1\n", Path(f"/proc/{parent}/status").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each is a new interpreter")
def test_what_others_fork_can_be_ended():
    """The program may have processes of the same server."""
    list(Workers(Squares(), 1).results(PLAN))
    others = multiprocessing.get_context("forkserver")
    process = others.Process(target=time.sleep, args=(HANGING,))
    process.start()
    try:
        process.terminate()
        process.join(HANGING)
        assert process.exitcode == -signal.SIGTERM
    finally:
        process.kill()


_STREAM = """
import multiprocessing, time
from tests.data.feeding.squares import PLAN, Squares
from pmal.data.feeding import workers as feeding
from pmal.data.feeding.workers import Workers
if __name__ == "__main__":
    workers = Workers(Squares(), 2)
    list(workers.results(PLAN))
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@IN_PROC
@pytest.mark.parametrize("shadow", [False, True], ids=["", "beside another PIL.py"])
def test_they_end_with_a_process_that_is_killed(tmp_path, shadow):
    """What lies in the current folder is not imported, though the first of them is started by words."""
    script, folder = tmp_path / "stream.py", tmp_path / "current"
    script.write_text(_STREAM)
    folder.mkdir()
    if shadow:
        (folder / "PIL.py").write_text("raise RuntimeError('not Pillow')")
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    words, pipe = [sys.executable, script], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, text=True, env=environment, cwd=folder) as process:
        workers = process.stdout.readline().split()
        process.kill()
    assert len(workers) == 2
    wait_for(lambda: not any(_lives(pid) for pid in workers))


def _lives(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
