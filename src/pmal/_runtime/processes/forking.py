"""Processes forked from one that has imported what they need and has done nothing else. On Linux.

multiprocessing has that as "forkserver", but with one server for the whole program. It is not ours: what
others fork from it must have neither our imports nor the signals blocked that we block while processes start.
"""

import os
import threading
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from typing import Any


class _Server(forkserver.ForkServer):
    """Imports nothing from the current folder, and has no threads, which a fork would leave behind."""

    read_signed = staticmethod(forkserver.read_signed)  # what a start asks the module for besides

    def ensure_running(self) -> None:
        wanted = {"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}
        before = {name: os.environ[name] for name in wanted if name in os.environ}
        os.environ.update(wanted)
        try:
            super().ensure_running()
        finally:
            for name in wanted:
                del os.environ[name]
            os.environ.update(before)


_server = _Server()
_launching = threading.Lock()


class _Process(ForkServerProcess):
    """Started in multiprocessing's own way, which finds our server where it looks for its own."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> popen_forkserver.Popen:  # noqa: N802
        module: Any = popen_forkserver
        with _launching:
            others, module.forkserver = module.forkserver, _server
            try:
                return popen_forkserver.Popen(process_obj)
            finally:
                module.forkserver = others


class _Context(ForkServerContext):
    Process = _Process


def forking_from(module: str) -> ForkServerContext:
    """A context of multiprocessing whose processes have this module imported. The first call decides."""
    _server.set_forkserver_preload([module])
    return _Context()
