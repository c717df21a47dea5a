"""What tests of several folders share."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pmal.__main__ import main
from pmal._runtime.signals import STOPPING, raise_on_signals

# Hypothesis draws new examples for developers, and the same ones in CI, where red must mean the change.

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("busy"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "busy")

# A shell starts what runs in its background deaf to Ctrl-C, and so would be all that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_DATA = os.environ.get("PMAL_DATA")
NOT_OURS = re.compile(
    r"PMAL_.*"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
    r"|TERM|COLORTERM|COLUMNS|LINES|TERMINAL_WIDTH|NO_COLOR|FORCE_COLOR|PY_COLORS|TTY_.*|TYPER_.*|GITHUB_ACTIONS"
    r"|(?i:(http|https|all|no)_proxy)"
    r"|PYTHON(UNBUFFERED|WARNINGS)|HF_.*|TRANSFORMERS_.*|XDG_CACHE_HOME"
)
"""Data, other processes, terminals, proxies, caches: what the caller's shell says of them is for no test."""


@pytest.fixture(scope="session", autouse=True)
def _environment():
    """The same in every shell, also for the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(NOT_OURS.fullmatch, list(os.environ)):
            patch.delenv(name)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def data_root(monkeypatch):
    """The caller's $PMAL_DATA, for the tests of the real sets alone; None where it names no folder."""
    if not REAL_DATA or not Path(REAL_DATA).is_dir():
        return None
    monkeypatch.setenv("PMAL_DATA", REAL_DATA)
    return Path(REAL_DATA)


@pytest.fixture
def real_data(data_root):
    """The same; without it the test is skipped."""
    if data_root is None:
        pytest.skip(f"$PMAL_DATA is {f'no folder: {REAL_DATA}' if REAL_DATA else 'not set'}")
    return data_root


@pytest.fixture
def handlers():
    """Whatever a test does to the handlers of signals is undone."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def raising(handlers):
    """Signals interrupt the work, as within a command."""
    raise_on_signals("go on")


@pytest.fixture
def call(handlers, monkeypatch, capfd):
    """The command in this process, which is quicker: (exit code, standard output, standard error)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pmal", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return (caught.value.code or 0, *capfd.readouterr())

    return run
