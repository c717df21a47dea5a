"""What every request passes: who may ask, the headers of every answer, and the count of it."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pmal.serving.http.requests.clients import Rates, client_name, has_key
from pmal.serving.http.requests.refusals import Refused

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(self)",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_ALWAYS = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
_NOT_KEPT = (b"cache-control", b"no-store")
OPEN = ("/healthz", "/readyz")
"""Paths that need no key and have no limit, for whoever watches over the process."""

Report = Callable[[Scope, int, float], None]
"""What takes the scope, the status and the seconds of an answered request."""


def allowed_hosts(bound: str, more: Collection[str]) -> frozenset[str] | None:
    """Return the names by which we may be called; None: any.

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
    """Return the name in a Host header, without the port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("[::1]"), host_name("")
    ('localhost', '::1', '::1', '')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


@dataclass(frozen=True)
class Rules:
    """Who may ask."""

    hosts: Collection[str] | None = None
    """The names by which the service may be called; None: any."""
    keys: Callable[[], Collection[bytes]] = frozenset
    """What gives the digests of the keys that open the interface; none: it is open."""
    rate: float = 0.0
    """Requests per second of one client; 0: any number."""


class Guard:
    """Pure ASGI, around the whole app."""

    def __init__(self, app: ASGIApp, rules: Rules, report: Report) -> None:
        self._app, self._rules, self._report = app, rules, report
        self._rates = Rates(rules.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = {name for name, _ in message["headers"]}
                more = _ALWAYS if b"cache-control" in names else (*_ALWAYS, _NOT_KEPT)
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, send_with_headers)
        finally:
            self._report(scope, status, time.perf_counter() - begin)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """Return what stands in the way of a request, if anything does."""
        headers, hosts = Headers(scope=scope), self._rules.hosts
        names = [host_name(value) for value in headers.getlist("host")]
        if len(names) != 1 or not (hosts is None or names[0] in hosts):
            return Refused(400, "unknown host: call this service by its own name", unread=True).response()
        if scope["path"] in OPEN:
            return None
        keys = self._rules.keys()
        if keys and not has_key(headers.get("authorization", ""), keys):
            return Refused(401, "no key, or another: send Authorization: Bearer KEY", unread=True).response()
        wait = self._rates.wait_for(client_name(scope["client"][0])) if self._rules.rate else 0.0
        if wait:
            reason = f"more than {self._rules.rate:g} requests per second: slow down"
            return Refused(429, reason, retry_after=wait, unread=True).response()
        return None
