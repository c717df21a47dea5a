"""The service that lets processes share a GPU, with a program of our own in its place."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from pmal._runtime.processes import gpu_sharing
from pmal._runtime.processes.gpu_sharing import CONTROL, LOGS, PIPES, shared_gpu

SEEN = f"import os; print(os.environ.get('{PIPES}'), os.environ.get('{LOGS}'))"
NOTED = f"""#!/bin/sh
words=none
[ "$1" = -d ] || read words
[ -d "${PIPES}" ] && [ -d "${LOGS}" ] && folders=there
echo "$*|$words|${PIPES}|${LOGS}|$folders" >> "$NOTES"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Without a service, and with nothing but what a test puts there on PATH."""
    programs, temporary = tmp_path / "programs", tmp_path / "temporary"
    programs.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.delenv(LOGS, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(gpu_sharing, "USUAL_PIPES", tmp_path / "usual")

    def put(script):
        (programs / CONTROL).write_text(script)
        (programs / CONTROL).chmod(0o700)

    def calls():
        notes = tmp_path / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [tuple(line.split("|")) for line in lines]

    return SimpleNamespace(put=put, calls=calls, usual=tmp_path / "usual", temporary=temporary)


@pytest.fixture(autouse=True)
def nothing_is_left(machine):
    yield
    assert list(machine.temporary.iterdir()) == []
    assert not {PIPES, LOGS} & set(os.environ)


def seen_by_a_child():
    return subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True).stdout.split()


def test_a_service_of_its_own_for_as_long_as_the_block(machine):
    machine.put(NOTED)
    with shared_gpu() as shared:
        assert shared
        [start] = machine.calls()
        pipes, logs = seen_by_a_child()
        for place in (pipes, logs):
            assert Path(place).parent.parent == machine.temporary
            assert Path(place).stat().st_mode & 0o777 == 0o700
    assert start == ("-d", "none", pipes, logs, "there")
    # Its folders are still there when it is asked to end.
    assert machine.calls() == [start, ("", "quit", pipes, logs, "there")]


def test_the_service_ends_after_an_error_too(machine):
    machine.put(NOTED)
    with pytest.raises(ZeroDivisionError), shared_gpu():
        raise ZeroDivisionError
    assert [words for _, words, *_ in machine.calls()] == ["none", "quit"]


def test_the_service_ends_where_its_start_is_interrupted(machine, monkeypatch):
    machine.put(NOTED)

    def interrupted(*words):
        gpu_sharing._run([CONTROL, "-d"], {name: str(machine.temporary) for name in (PIPES, LOGS)})
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_sharing, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt), shared_gpu():
        pytest.fail("it was not started")
    assert [words for _, words, *_ in machine.calls()] == ["none", "quit"]


def test_a_service_that_runs_already_is_left_alone(machine, monkeypatch):
    machine.put(NOTED)
    with monkeypatch.context() as set_by_user:
        set_by_user.setenv(PIPES, "/somewhere")
        with shared_gpu() as shared:
            assert shared
            assert seen_by_a_child() == ["/somewhere", "None"]
        assert os.environ[PIPES] == "/somewhere"
    machine.usual.mkdir()
    (machine.usual / "control").touch()
    with shared_gpu() as shared:
        assert shared
        assert seen_by_a_child() == ["None", "None"]
    assert machine.calls() == []


def test_a_log_folder_that_was_named_before_is_named_again(machine, monkeypatch):
    machine.put(NOTED)
    with monkeypatch.context() as set_by_user:
        set_by_user.setenv(LOGS, "/logs")
        with shared_gpu():
            assert os.environ[LOGS] != "/logs"
        assert os.environ[LOGS] == "/logs"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(f"{NOTED}exit 1\n", id="fails"),
        pytest.param(f"{NOTED}exec sleep 60\n", id="hangs"),
        pytest.param("no program", id="no program"),
        pytest.param(None, id="is missing"),
    ],
)
def test_without_a_service_the_processes_take_turns(machine, monkeypatch, script):
    monkeypatch.setattr(gpu_sharing, "_SECONDS", 0.5)
    if script is not None:
        machine.put(script)
    else:
        monkeypatch.setattr(gpu_sharing.shutil, "which", lambda name: None)
    with shared_gpu() as shared:
        assert not shared
        assert seen_by_a_child() == ["None", "None"]
