"""Request bodies: read as a stream, held in memory alone, and never more of them than the limits say."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from pmal.data.decoding.decode import MAX_PIXELS
from pmal.serving.http.requests.deadline import within
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.requests.row_requests import FORM as ROWS_FORM
from pmal.serving.http.requests.row_requests import pack_rows
from pmal.serving.http.schemas import FORM, JSON, RAW_TYPES


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and all together."""

    body_bytes: int = 16 << 20
    """Bytes of one request."""
    pixels: int = MAX_PIXELS
    """Pixels of one image."""
    images: int = 64
    """Images in one request."""
    queue: int = 512
    """Images of all requests that wait for their answer."""
    client_queue: int = 256
    """Images of one client that wait for their answer."""
    connections: int = 1000
    """Connections that are open at the same time."""
    client_connections: int = 256
    """Open connections of one client."""
    rate: float = 0.0
    """Requests per second of one client; 0: any number."""
    held_bytes: int = 256 << 20
    """Bodies of all requests in memory, a half of it those of one client; at least one fits."""
    read_seconds: float = 25.0
    """Seconds that a client has to send its body. Even with the rest of a refused body, this is less than
    what a service that is asked to end waits for its clients."""


@dataclass(frozen=True)
class Upload:
    """An encoded image, or the bytes of an embedding, and what the client calls it."""

    name: str
    data: bytes


class House:
    """Who is in: a place for each image whose body has arrived, and the bytes of the bodies.

    Full is 503, for all or for one client that has its share.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.places, self.held = limits, 0, 0
        self._of: dict[str, Guest] = {}

    @contextmanager
    def guest(self, client: str = "") -> Iterator["Guest"]:
        """Admit one request; reject it before its body is read if there is no place left."""
        found, share = Guest(self, client), self._of.setdefault(client, Guest(self, client))
        share.requests += 1
        try:
            found.take(places=1, unread=True)
            found.give_back()
            yield found
        finally:
            found.give_back()
            share.requests -= 1
            if not share.requests:
                del self._of[client]

    def share_of(self, client: str) -> "Guest":
        """Return what all requests of a client have taken together."""
        return self._of[client]


@dataclass
class Guest:
    """What one request has taken of the house, or all requests of a client."""

    house: House
    client: str
    places: int = field(default=0, init=False)
    held: int = field(default=0, init=False)
    requests: int = field(default=0, init=False)

    def take(self, places: int = 0, held: int = 0, unread: bool = False) -> None:
        """Take more of it, or raise the refusal."""
        house, limits, share = self.house, self.house.limits, self.house.share_of(self.client)
        most = max(limits.held_bytes, limits.body_bytes)
        if house.places + places > limits.queue or house.held + held > most:
            raise Refused(503, "busy: try again in a second", retry_after=1, unread=unread)
        if share.places + places > limits.client_queue or share.held + held > max(
            most // 2, limits.body_bytes
        ):
            reason = "busy with other requests of yours: try again in a second"
            raise Refused(503, reason, retry_after=1, unread=unread)
        for one in (self, house, share):
            one.places += places
            one.held += held

    def give_back(self) -> None:
        """Leave all that was taken to others."""
        places, held = self.places, self.held
        for one in (self, self.house, self.house.share_of(self.client)):
            one.places -= places
            one.held -= held


async def read_uploads(request: Request, guest: Guest, rows: bool = False) -> list[Upload]:
    """Return the images of a request, the body itself or every file of a form, each with its place.

    Args:
        request: of the client.
        guest: holds the places.
        rows: embeddings, in JSON.
    """
    limits, kind = guest.house.limits, _kind(request, rows)
    try:
        async with within(limits.read_seconds):
            if kind == FORM:
                uploads = await _read_form(request, guest)
            else:
                uploads = [Upload("body", b"".join([chunk async for chunk in _chunks(request, guest)]))]
    except TimeoutError:
        raise Refused(408, f"the body took more than {limits.read_seconds:g} s", unread=True) from None
    if rows:  # in a thread: megabytes of numbers take a while
        packed = await asyncio.to_thread(pack_rows, uploads[0].data, limits.images)
        uploads = [Upload(*row) for row in packed]
    guest.take(places=len(uploads))
    return uploads


def _kind(request: Request, rows: bool) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ((JSON,) if rows else (*RAW_TYPES, FORM)):
        return kind
    shown = kind[:60] or "a body without Content-Type"
    fix = f"{JSON}, {ROWS_FORM}" if rows else f"{FORM}, image/png, image/jpeg or another image"
    raise Refused(415, f"{shown} is not taken: send {fix}", unread=True)


async def _chunks(request: Request, guest: Guest) -> AsyncGenerator[bytes, None]:
    """Yield what has arrived, until the limit: the length that a client declares proves nothing.

    starlette's own limit answers in plain text, and reads nothing of what a refused client still sends.
    """
    declared, most, total = request.headers.get("content-length", ""), guest.house.limits.body_bytes, 0
    if declared.isdecimal():
        _check_size(int(declared), most)
    async for chunk in request.stream():
        total += len(chunk)
        _check_size(total, most)
        guest.take(held=len(chunk), unread=True)
        yield chunk


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Refused(413, f"the body is larger than the limit of {most} bytes", unread=True)


async def _read_form(request: Request, guest: Guest) -> list[Upload]:
    most = guest.house.limits.images
    parser = _Form(request.headers, _chunks(request, guest), max_files=most, max_fields=0)
    try:
        parts = (part for _, part in (await parser.parse()).multi_items())
        files = [part for part in parts if isinstance(part, UploadFile)]
        uploads = [Upload(one.filename or f"image {i + 1}", one.file.read()) for i, one in enumerate(files)]
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refused(413, f"more than {most} images in one request", unread=True) from None
        if "Too many fields" in error.message:
            raise Refused(422, "a part without a filename: send each image as a file", unread=True) from None
        raise Refused(422, f"the body is not well-formed {FORM}: {error.message}", unread=True) from None
    finally:
        parser.close()
    if not parser.ended:
        raise Refused(422, f"the body is not well-formed {FORM}: its last boundary is missing")
    if not uploads:
        raise Refused(422, "no image in the request: send at least one part")
    return uploads


class _Form(MultiPartParser):
    """starlette's parser, which writes large files to disk elsewhere: here images are never stored."""

    spool_max_size = sys.maxsize
    ended = False

    def on_end(self) -> None:
        self.ended = True

    def close(self) -> None:
        """Give back the memory of all parts, of those that did not end as well."""
        for file in self._files_to_close_on_error:
            file.close()
