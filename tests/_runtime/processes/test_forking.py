import os
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


@pytest.mark.parametrize("before", [None, "2"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_server_s_environment_is_its_own(before, fails, monkeypatch):
    from pmal._runtime.processes import forking

    seen = {}

    def start(server):
        seen.update(os.environ)
        if fails:
            raise OSError("no more processes")

    monkeypatch.setattr(forking.forkserver.ForkServer, "ensure_running", start)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if before:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", before)
    mine = dict(os.environ)
    if fails:
        with pytest.raises(OSError, match="no more processes"):
            forking._Server().ensure_running()
    else:
        forking._Server().ensure_running()
    assert (seen["PYTHONSAFEPATH"], seen["OPENBLAS_NUM_THREADS"]) == ("1", "1")
    assert dict(os.environ) == mine


def test_a_process_that_does_not_start_leaves_others_their_server(monkeypatch):
    from multiprocessing import forkserver, popen_forkserver

    from pmal._runtime.processes.forking import _Process

    def fail(process):
        assert popen_forkserver.forkserver is not forkserver
        raise OSError("no more processes")

    monkeypatch.setattr(popen_forkserver, "Popen", fail)
    with pytest.raises(OSError, match="no more processes"):
        _Process._Popen(None)
    assert popen_forkserver.forkserver is forkserver
