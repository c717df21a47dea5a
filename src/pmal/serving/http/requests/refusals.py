"""Refusals: one line of JSON that a client can act on, without paths or traces."""

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

LINGER_BYTES, LINGER_SECONDS = 4 << 20, 2.0
"""What is still taken and thrown away of a body that was refused.

A connection that is closed while the client still sends is reset, and the client may never see the answer.
"""


class Refused(Exception):
    """A request that is answered with an error of this status."""

    def __init__(
        self, status: int, reason: str, *, retry_after: float = 0.0, unread: bool = False, **more: Any
    ) -> None:
        super().__init__(reason)
        self.status, self.reason, self.more = status, one_line(reason), more
        self.headers = {"Retry-After": str(math.ceil(retry_after))} if retry_after else {}
        if status == 401:  # a browser then asks for the key
            self.headers["WWW-Authenticate"] = 'Basic realm="pmal: the key as password", charset="UTF-8"'
        self.unread = unread
        """Whether some of the body has not been read: then the connection ends with the answer."""

    def response(self) -> JSONResponse:
        """Return the answer that the client gets."""
        kind = ClosingResponse if self.unread else JSONResponse
        return kind({"error": self.reason, **self.more}, self.status, headers=self.headers)


class ClosingResponse(JSONResponse):
    """Sent at once, while the client may still be sending; a little of that is read, the rest never."""

    def __init__(self, content: Any, status_code: int, headers: Mapping[str, str]) -> None:
        super().__init__(content, status_code, headers={**headers, "Connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _throw_away(receive)
        await send({"type": "http.response.body", "body": b""})


def one_line(text: str) -> str:
    """Put whatever a name or a library says in a reason on one line."""
    return " ".join(text.split())


async def _throw_away(receive: Receive) -> None:
    left = LINGER_BYTES
    while left > 0:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        left -= len(message.get("body", b""))
