"""A sample of what `python -m benchmarks.failures` tries: the n-th call fails, and what was there stays."""

import shutil
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler on Linux"
)
def test_a_command_that_fails_somewhere_leaves_the_old_state_and_goes_on():
    words = ["--only", "add-class", "--kinds", "write,rename", "--most", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.failures", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("add-class ") == 2
    assert '"failed": 2' in done.stdout
