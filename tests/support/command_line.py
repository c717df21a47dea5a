"""The command in a process of its own, and how it tells a mistake."""

import subprocess
import sys
from pathlib import Path

from tests.support.hanging import HANGING

MISBEHAVING = Path(__file__).with_name("misbehaving.py")


def pmal(*words):
    """The command in a process of its own."""
    return python("-m", "pmal", *words)


def python(*words):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGING)


def assert_one_line_error(result, code, *parts):
    returned, _, error = result
    assert returned == code, error
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    for part in parts:
        assert part in error
