"""The end of a test that hangs. Whatever else a busy machine has to do may take as long as it takes."""

import time

HANGING = 600.0
"""Seconds after which what has not come never will."""


def wait_for(condition):
    end = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
