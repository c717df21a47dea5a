"""What tests of several folders share."""

import os
import signal
import sys

import pytest
from hypothesis import settings

from pmal.__main__ import main
from pmal._runtime.signals import STOPPING, raise_on_signals

# Hypothesis draws new examples for developers, and the same ones in CI, where red must mean the change.

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

# A shell starts what runs in its background deaf to Ctrl-C, and so would be all that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
