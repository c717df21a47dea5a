"""The service without a socket: bytes go into a connection, and what comes out is checked.

Every answer is HTTP of a status that the interface has, every error one line of JSON; nothing is logged, and
when the client has gone nothing is left of it.
"""

import asyncio
import functools
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from pmal.errors import DataError

STATUSES = {100, 200, 304, 307, 400, 404, 405, 408, 413, 415, 422, 431, 503}
HOST = b"Host: localhost\r\n"
PATIENCE = 5.0


class Client(asyncio.Transport):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 9), "sockname": ("127.0.0.1", 8000)})
        self.received, self.closed = bytearray(), False

    def write(self, data: Any) -> None:
        assert not self.closed, "written to a connection that is closed"
        self.received += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Bench:
    """A service and its loop, of one process."""

    def __init__(self) -> None:
        from pmal.serving.http.app import create_app
        from pmal.serving.http.batching import batch_size
        from pmal.serving.http.core import Service
        from pmal.serving.http.requests.upload import Limits
        from pmal.serving.http.served_model import ServedModel
        from pmal.serving.http.server import make_server
        from pmal.serving.http.service_log import set_up_log
        from tests.serving.tiny_model import make_model

        model = make_model()
        served = ServedModel(model, "tiny", "f" * 64, batch_size(model, 1))
        self.service = Service(lambda: served, Limits(1 << 20, 1 << 16, 4), say=lambda _: None)
        self.config: uvicorn.Config = make_server(create_app(self.service), self.service).config
        self.config.load()
        self.log = Records()
        set_up_log(access=False)
        logging.getLogger().handlers = [self.log]
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.service.batcher.start())

    def send(self, data: bytes) -> bytes:
        """Return what a client gets that sends this, in three pieces, and then goes away."""
        found = self.loop.run_until_complete(self._send(data))
        house, lines = self.service.house, self.service.connections
        assert (house.places, house.held, lines.count) == (0, 0, 0), "a client that has gone left something"
        logged, self.log.lines = self.log.lines, []
        assert not logged, logged[0]
        return found

    async def _send(self, data: bytes) -> bytes:
        client, state = Client(), ServerState()
        connection: Any = self.config.http_protocol_class(
            config=self.config, server_state=state, app_state={}
        )
        connection.connection_made(client)
        for begin, end in ((0, len(data) // 3), (len(data) // 3, len(data) - 1), (len(data) - 1, len(data))):
            if data[begin:end] and not client.closed:
                connection.data_received(data[begin:end])
                await asyncio.sleep(0)
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=0.02)
        client.closed = True
        connection.connection_lost(None)
        if state.tasks:
            _, late = await asyncio.wait(state.tasks, timeout=PATIENCE)
            assert not late, "a request goes on, though its client has gone"
        return bytes(client.received)


@functools.cache
def bench() -> Bench:
    """Return the service of this process."""
    return Bench()


def read_http(path: Path) -> str:
    """Return the statuses and errors of a connection; the first answer decides whether it is refused."""
    rest, said = bench().send(path.read_bytes()), []
    while rest:
        head, ended, rest = rest.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        status, length = int(lines[0].split()[1]), int(fields.get("content-length", 0))
        assert status in STATUSES, f"status {status}"
        if not ended or len(rest) < length:  # the client was gone before all was sent
            break
        body, rest = rest[:length], rest[length:]
        if status >= 400 and body:
            error = json.loads(body)["error"]
            assert "\n" not in error, error
            said.append(f"{status} {error}")
        else:
            said.append(str(status))
        if "close" in fields.get("connection", ""):
            assert not rest.startswith(b"HTTP/"), "an answer after the last"
            break
        if status == 200 and not length and rest and not rest.startswith(b"HTTP/"):
            break  # to a HEAD
    if said and not said[0].startswith(("1", "2", "3")):
        raise DataError(said[0])
    return " ".join(said)


def requests(folder: Path) -> Iterable[bytes]:
    """Yield good requests, alone and one after another."""
    from tests.serving.http_service import form, png

    def post(body: bytes, kind: str, more: bytes = b"") -> bytes:
        head = b"POST /v1/predict?top=1 HTTP/1.1\r\n" + HOST + more
        return head + f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    image = png(0)
    parts, kind = form(("a.png", image), ("b.png", image), boundary="boundary")
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (image[:40], image[40:]))
    head = b"POST /v1/predict HTTP/1.1\r\n" + HOST + b"Content-Type: image/png\r\n"
    get = b"GET /v1/model?score=logit HTTP/1.1\r\n" + HOST + b"Accept: */*\r\n\r\n"
    yield post(image, "image/png")
    yield post(parts, kind)
    yield post(image, "image/png", b"Expect: 100-continue\r\nConnection: close\r\n")
    yield head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n"
    yield get + post(image, "image/png") + b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + get
    yield b"GET /v1/prototypes/ffffffffffffffff/0/0.png HTTP/1.1\r\n" + HOST + b"\r\n"
    yield b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
