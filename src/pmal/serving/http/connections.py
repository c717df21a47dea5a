"""Connections: how many there may be, how long a client is waited for, what malformed HTTP is answered."""

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pmal.serving.http.requests.clients import client_name
from pmal.serving.http.requests.deadline import Deadline
from pmal.serving.http.requests.guard import HEADERS

HEADER_SECONDS = 10.0
"""Seconds from the first byte of a request, or from the connection, to the end of the headers."""
UNREAD_SECONDS = 30.0
"""Seconds that a client may take to read its answer."""
HEADER_BYTES = 64 << 10
RESERVED_FILES = 64
"""What the process opens next to connections: the model at a reload, libraries, the log."""


class Line(Protocol):
    """What `Connections` knows of a connection."""

    name: str
    """Whose it is."""

    def make_room(self) -> None: ...


class Connections:
    """Count the open connections, in all and of each client, and decide who makes room for another.

    A connection waits while its client owes a request, or the rest of one. One that is being answered is
    never closed for another.
    """

    def __init__(self, most: int, each: int, proxies: Collection[str] = ()) -> None:
        self.most, self.each, self._proxies = most, each, frozenset(proxies)
        self._open: dict[Line, None] = {}
        self._waiting: dict[Line, None] = {}  # since longest first
        self._of: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def admit(self, line: Line) -> bool:
        """Return whether there is room for it, or another has made room."""
        if line.name not in self._proxies and self._of[line.name] >= self.each:
            if not self._close_one_of(line.name):
                return False
        elif self.count >= self.most:
            busiest = max(self._of, key=self._of.__getitem__)
            if not (self._close_one_of(busiest) or self._close_one_of(None)):
                return False
        self._open[line] = None
        self._of[line.name] += 1
        return True

    def waits(self, line: Line) -> None:
        """Note that the client owes something, from now on."""
        if line in self._open:
            self._waiting.pop(line, None)
            self._waiting[line] = None

    def busy(self, line: Line) -> None:
        """Note that the request has arrived."""
        self._waiting.pop(line, None)

    def leave(self, line: Line) -> None:
        """Forget a connection that is closed, if it was admitted."""
        self._waiting.pop(line, None)
        if line in self._open:
            del self._open[line]
            self._of[line.name] -= 1
            if not self._of[line.name]:
                del self._of[line.name]

    def _close_one_of(self, name: str | None) -> bool:
        oldest = next((line for line in self._waiting if name in (None, line.name)), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.make_room()
        return True


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with the limits that it lacks."""

    def __init__(
        self, *words: Any, open_lines: Connections, report: Callable[[int, str], None], **named: Any
    ):
        super().__init__(*words, **named)
        self._open_lines, self._report = open_lines, report
        self._deadline: Deadline | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes, self._header_bytes = False, 0, 0
        self._begun = False
        """Whether a request began in the bytes that came last."""
        self._answered: RequestResponseCycle | None = None
        """The request that is being answered, or the last that was."""
        self.name = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.name = client_name(self.client[0] if self.client else "")
        if not self._open_lines.admit(self):
            self.refuse(503, "too many connections: close some, or try again later")
            return
        self._open_lines.waits(self)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # refused: what still comes is not read
            return
        self._begun = False
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += 0 if self._begun else len(data)  # before it there may be the end of another
        if self._head_bytes > HEADER_BYTES:
            self.refuse(431, f"headers of more than {HEADER_BYTES} bytes")
        elif self._deadline is None:
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_lines.leave(self)
        self._end_deadline()
        self.resume_writing()
        super().connection_lost(exc)
        self._drop_answers()

    def make_room(self) -> None:
        """Close the connection at once, whatever its client still wanted to send."""
        self.transport.abort()
        self._drop_answers()

    def refuse(self, status: int, reason: str) -> None:
        """Answer what never became a request, in the form of all errors, and close."""
        self._end_deadline()
        if not (self.transport.is_closing() or self._within_answer()):
            self._report(status, self.client[0] if self.client else "")
            body = json.dumps({"error": reason}).encode()
            fixed = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in (HEADERS | fixed).items())
            self.transport.write(STATUS_LINE[status] + lines.encode() + b"\r\n" + body)
        self.transport.close()
        self._drop_answers()

    def send_400_response(self, msg: str) -> None:
        many = self._header_bytes > HEADER_BYTES
        self.refuse(431, f"headers of more than {HEADER_BYTES} bytes") if many else self.refuse(
            400, "malformed HTTP: the request cannot be read"
        )

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._header_bytes = True, 0, 0
        self._begun = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("headers too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("another version of HTTP")
        self._in_head = False
        self._end_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._open_lines.busy(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:  # else the next request is here already
            self._open_lines.waits(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _within_answer(self) -> bool:
        last = self._answered
        return last is not None and last.response_started and not last.response_complete

    def _drop_answers(self) -> None:
        """Have nothing written any more. uvicorn tells the request that came last, not those before it."""
        for cycle in (self._answered, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_deadline(self) -> None:
        late = f"the headers took more than {HEADER_SECONDS:g} s"
        self._deadline = Deadline(HEADER_SECONDS, partial(self.refuse, 408, late), self.loop)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def room_for(wanted: int) -> int:
    """Return how many connections the process may open, up to as many as are wanted.

    The limit of open files is raised to what the system lets a user have: over it nobody at all would get in.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(wanted, allowed - RESERVED_FILES))
