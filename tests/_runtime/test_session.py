"""What a session refuses before any work begins."""

import pytest

from pmal._runtime.launch import usable_cores
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.errors import UsageError


def test_more_workers_than_a_machine_can_start_are_refused():
    most = 8 * usable_cores()
    assert open_session(Resources(device="cpu", workers=most)).resources.workers == most
    with pytest.raises(UsageError, match=f"--workers {most + 1} are too many .* choose {most} or fewer"):
        open_session(Resources(device="cpu", workers=most + 1))
