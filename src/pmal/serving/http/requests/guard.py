"""What every request passes: whether it is meant for us, the headers of every answer, and the count of it."""

import time
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(self)",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Report = Callable[[str, int, float], None]
"""Route, status and seconds of an answered request."""


def allowed_hosts(bound: str, more: Collection[str]) -> frozenset[str] | None:
    """The names by which we may be called; None: any.

    A page of another site can have its own name resolve to 127.0.0.1 and then read what it gets from there.
    But its name stays in the Host header.

    >>> sorted(allowed_hosts("127.0.0.1", ["photos.lan"])), allowed_hosts("0.0.0.0", [])
    (['127.0.0.1', '::1', 'localhost', 'photos.lan'], None)
    >>> allowed_hosts("127.0.0.2", []) is None  # as much this machine's as 127.0.0.1 is
    False
    >>> "photos.lan" in allowed_hosts("0.0.0.0", ["Photos.lan:8000"])
    True
    """
    if not _is_loopback(bound) and not more:
        return None
    # An address of IPv6 that is not in brackets has colons, too, and no port.
    named = (name.lower() if name.count(":") > 1 and name[0] != "[" else host_name(name) for name in more)
    return frozenset((*LOOPBACK, bound.lower(), *named))


def _is_loopback(bound: str) -> bool:
    try:
        return ip_address(bound).is_loopback
    except ValueError:
        return bound.lower() in LOOPBACK


def host_name(header: str) -> str:
    """The name in a Host header, without the port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("[::1]"), host_name("")
    ('localhost', '::1', '::1', '')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


class Guard:
    """Pure ASGI, around the whole app."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, report: Report) -> None:
        self._app, self._hosts, self._report = app, hosts, report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._choose(scope)(scope, receive, send_with_headers)
        finally:
            # Not the path itself: anybody could make up new ones without end.
            route = getattr(scope.get("route"), "path", "other")
            self._report(route, status, time.perf_counter() - begin)

    def _choose(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        names = [host_name(value) for value in Headers(scope=scope).getlist("host")]
        if self._hosts is None or (names and all(name in self._hosts for name in names)):
            return self._app
        return JSONResponse({"error": "unknown host: call this service by its own name"}, 400)
