"""The process around the service: its socket, its signals, its end."""

import asyncio
import contextlib
import ctypes
import signal
import socket
import ssl
import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp

from pmal._runtime.processes.launch import usable_cores
from pmal.errors import UsageError
from pmal.serving.http.connections import HEADER_SECONDS, Connection
from pmal.serving.http.core import Service

GRACE_SECONDS = 30
"""Seconds for the requests in flight when the service is asked to end."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt, as in malloc.h."""


class Server(uvicorn.Server):
    """Until SIGTERM or SIGINT: then nobody else is let in, and who is in is answered.

    uvicorn would then send itself the signal again, and die of it.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.is_ssl:  # uvicorn leaves a client a minute for its handshake
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HEADER_SECONDS)
        await super().startup(sockets)

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


def make_server(app: ASGIApp, service: Service, **options: Any) -> Server:
    """Return the server of an app.

    Quiet: what a client did wrong is in its answer and in the figures.

    Args:
        app: to be served.
        service: that the app asks.
        options: uvicorn's own, for TLS and proxies.
    """
    protocol = partial(Connection, open_lines=service.connections, report=service.report_refused)
    settings: dict[str, Any] = {
        "http": protocol,  # uvicorn calls it as it would call a class
        "log_config": None,
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "ws": "none",
        "timeout_graceful_shutdown": GRACE_SECONDS,
    }
    return Server(uvicorn.Config(app, **settings | options))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        reason = getattr(error, "strerror", None) or error
        fix = "choose another --port or --host"
        raise UsageError(f"cannot listen on {host}:{port} ({reason}): {fix}") from None


def check_certificate(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Return uvicorn's options for TLS; none without a certificate. Refused if the pair cannot be used."""
    if cert is None and key is None:
        return {}
    if cert is None or key is None:
        raise UsageError("--tls-cert and --tls-key belong together: pass both")
    try:
        # A password would be asked for on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise UsageError(
            f"{cert} with {key}: no certificate and key ({reason}): pass two PEM files"
        ) from None
    return {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return what to type into a browser."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


def leave_a_core() -> None:
    """Leave a core of several to the other threads.

    The network's threads wait for each other, and one that shares its core holds up all.
    """
    torch.set_num_threads(max(1, min(torch.get_num_threads(), usable_cores() - 1)))


def give_memory_back() -> None:
    """Have the memory of large images returned to the system when they are done with.

    The C library would keep blocks of the size that it has seen freed once, for good, in every thread.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        change = ctypes.CDLL(None).mallopt
        for option, size in ((_MMAP_THRESHOLD, 8 << 20), (_TRIM_THRESHOLD, 64 << 20)):
            change(option, size)
