"""The process around the service: its socket, its signals, its end."""

import contextlib
import ctypes
import signal
import socket
import threading
from collections.abc import Generator

import torch
import uvicorn
from starlette.types import ASGIApp

from pmal._runtime.processes.launch import usable_cores
from pmal.errors import UsageError

GRACE_SECONDS = 30
"""For what is in flight when the service is asked to end."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As glibc's malloc.h has them."""


class Server(uvicorn.Server):
    """Until SIGTERM or SIGINT: then nobody else is let in, and who is in is answered.

    uvicorn would then send itself the signal again, and die of it.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: ASGIApp) -> Server:
    """Quiet: what a client did wrong is in its answer and in the metrics, not in a log that it can fill."""
    return Server(
        uvicorn.Config(
            app,
            http="h11",  # which has a limit for headers
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        reason = getattr(error, "strerror", None) or error
        fix = "choose another --port or --host"
        raise UsageError(f"cannot listen on {host}:{port} ({reason}): {fix}") from None


def address_of(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def leave_a_core() -> None:
    """Of several: the network's threads wait for each other, and one that shares its core holds up all."""
    torch.set_num_threads(max(1, min(torch.get_num_threads(), usable_cores() - 1)))


def give_memory_back() -> None:
    """Have the memory of large images returned to the system when they are done with.

    The C library would keep blocks of the size that it has seen freed once, for good, in every thread.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        change = ctypes.CDLL(None).mallopt
        for option, size in ((_MMAP_THRESHOLD, 8 << 20), (_TRIM_THRESHOLD, 64 << 20)):
            change(option, size)
