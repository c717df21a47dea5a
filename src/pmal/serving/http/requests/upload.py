"""Request bodies: read as a stream, held in memory alone, and never more of them than the limits say."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pmal.data.decoding.decode import MAX_PIXELS
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.requests.row_requests import FORM as ROWS_FORM
from pmal.serving.http.requests.row_requests import JSON, pack_rows

RAW_TYPES = (
    "application/octet-stream",
    "image/bmp",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/tiff",
    "image/webp",
    "image/x-ms-bmp",
    "image/x-portable-anymap",
    "image/x-portable-bitmap",
    "image/x-portable-graymap",
    "image/x-portable-pixmap",
)
FORM = "multipart/form-data"


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and all together."""

    body_bytes: int = 16 << 20
    """Of one request."""
    pixels: int = MAX_PIXELS
    """Of one image."""
    images: int = 64
    """In one request."""
    queue: int = 256
    """Images of all requests that are being read or wait for their answer."""
    held_bytes: int = 256 << 20
    """Bodies of all requests in memory; at least one fits."""
    read_seconds: float = 25.0
    """For a client to send its body. With what is still taken of a refused one it is over before a service
    that is asked to end loses its patience."""


@dataclass(frozen=True)
class Upload:
    """An encoded image, or the bytes of an embedding, and what the client calls it."""

    name: str
    data: bytes


class House:
    """Who is in: a place for each image, and the bytes of the bodies. Full is 503, before a body is read."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.places, self.held = limits, 0, 0

    @contextmanager
    def guest(self) -> Iterator["Guest"]:
        """One request, with a place for its first image."""
        found = Guest(self)
        try:
            found.take(places=1, unread=True)
            yield found
        finally:
            self.places -= found.places
            self.held -= found.held


@dataclass
class Guest:
    """What one request has taken of the house."""

    house: House
    places: int = field(default=0, init=False)
    held: int = field(default=0, init=False)

    def take(self, places: int = 0, held: int = 0, unread: bool = False) -> None:
        """More of it, or 503."""
        house, limits = self.house, self.house.limits
        most = max(limits.held_bytes, limits.body_bytes)
        if house.places + places > limits.queue or house.held + held > most:
            raise Refused(503, "busy: try again in a second", retry_after=1, unread=unread)
        house.places += places
        house.held += held
        self.places += places
        self.held += held


async def read_uploads(request: Request, guest: Guest, rows: bool = False) -> list[Upload]:
    """The images of a request: the body itself, or every part of a form. rows: embeddings, in JSON."""
    limits = guest.house.limits
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    kind_name = kind.decode("latin-1")
    if kind_name not in ((JSON,) if rows else (*RAW_TYPES, FORM)):
        shown = kind_name[:60] or "a body without Content-Type"
        fix = f"{JSON}, {ROWS_FORM}" if rows else f"{FORM}, image/png, image/jpeg or another image"
        raise Refused(415, f"{shown} is not taken: send {fix}", unread=True)
    _check_declared_length(request, limits)
    try:
        async with asyncio.timeout(limits.read_seconds):
            if kind_name == FORM:
                return await _read_form(request, guest, options.get(b"boundary", b""))
            data = b"".join([chunk async for chunk in _chunks(request, guest)])
    except TimeoutError:
        raise Refused(408, f"the body took more than {limits.read_seconds:g} s", unread=True) from None
    if rows:  # in a thread: megabytes of numbers take a while
        return [Upload(*row) for row in await asyncio.to_thread(pack_rows, data, limits.images)]
    return [Upload("body", data)]


def _check_declared_length(request: Request, limits: Limits) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        raise _too_large(limits)


def _too_large(limits: Limits) -> Refused:
    return Refused(413, f"the body is larger than the limit of {limits.body_bytes} bytes", unread=True)


async def _chunks(request: Request, guest: Guest) -> AsyncIterator[bytes]:
    """What has arrived, until the limit: the length that a client declares proves nothing."""
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > guest.house.limits.body_bytes:
            raise _too_large(guest.house.limits)
        guest.take(held=len(chunk), unread=True)
        yield chunk


async def _read_form(request: Request, guest: Guest, boundary: bytes) -> list[Upload]:
    if not boundary:
        raise Refused(422, f"{FORM} without a boundary: let your HTTP library write the header", unread=True)
    try:
        form = _Form(boundary, guest.house.limits)
        async for chunk in _chunks(request, guest):
            form.feed(chunk)
        return form.finish()
    except FormParserError:
        raise Refused(422, f"the body is not well-formed {FORM}", unread=True) from None


class _Form:
    """Parts as they come. Not starlette's form parser: it writes large files to disk."""

    def __init__(self, boundary: bytes, limits: Limits) -> None:
        self._limits, self._done = limits, False
        self._uploads: list[Upload] = []
        self._name, self._field, self._value, self._data = "", b"", b"", bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_part_data": self._on_data,
                "on_part_end": self._end,
                "on_end": self._on_end,
            },
        )

    def feed(self, chunk: bytes) -> None:
        self._parser.write(chunk)

    def finish(self) -> list[Upload]:
        if not self._done:
            raise FormParserError("the last boundary is missing")
        if not self._uploads:
            raise Refused(422, "no image in the request: send at least one part")
        return self._uploads

    def _begin(self) -> None:
        if len(self._uploads) >= self._limits.images:
            raise Refused(413, f"more than {self._limits.images} images in one request", unread=True)
        self._name, self._data = "", bytearray()

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"filename") or options.get(b"name", b"")
            self._name = name.decode("utf-8", errors="replace")
        self._field = self._value = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]

    def _end(self) -> None:
        name = self._name or f"image {len(self._uploads) + 1}"
        self._uploads.append(Upload(name, bytes(self._data)))

    def _on_end(self) -> None:
        self._done = True
