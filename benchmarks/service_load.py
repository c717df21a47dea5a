"""Clients for the service, as light as Python allows: raw HTTP over asyncio, all in one process."""

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Answer = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """A request, the statuses that are right for it, and the images whose answers it must bring."""

    kind: str
    head: bytes
    body: bytes = b""
    statuses: tuple[int, ...] = (200,)
    images: tuple[int, ...] = ()
    leave: bool = False
    """Whether the client goes away without waiting."""


@dataclass
class Tally:
    """What came back."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    images: int = 0


def post(kind: str, length: int) -> bytes:
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()


def good(files: Sequence[bytes], i: int) -> Ask:
    return Ask("one image", post("image/png", len(files[i])), files[i], images=(i,))


def good_form(files: Sequence[bytes], chosen: Sequence[int]) -> Ask:
    mark = uuid.uuid4().hex
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{i}.png"\r\n\r\n'.encode()
        + files[i]
        + b"\r\n"
        for i in chosen
    ]
    body = b"".join(parts) + f"--{mark}--\r\n".encode()
    head = post(f"multipart/form-data; boundary={mark}", len(body))
    return Ask("three images", head, body, images=tuple(chosen))


def mixed(files: Sequence[bytes], choose: random.Random) -> Ask:
    """Three quarters good, the rest bad in every way."""
    i, share = choose.randrange(len(files)), choose.random()
    if share < 0.7:
        return good(files, i)
    if share < 0.76:
        return good_form(files, choose.choices(range(len(files)), k=3))
    half, head = files[i][: len(files[i]) // 2], post("image/png", len(files[i]))
    bad = [
        Ask("no image", post("image/png", 5), b"hello", (422,)),
        Ask("half an image", post("image/png", len(half)), half, (422,)),
        Ask("wrong type", post("text/plain", 5), b"hello", (415,)),
        Ask("too large", post("image/png", 1 << 30), half, (413,)),
        Ask("leaves at once", head, files[i], leave=True),
        Ask("leaves half way", head, half, leave=True),
    ]
    return choose.choice(bad)


async def run_clients(
    port: int, make: Callable[[random.Random], Ask], expected: Sequence[Answer], clients: int, seconds: float
) -> Tally:
    """So many clients at once, each with one request after the other."""
    tally, end = Tally(), time.monotonic() + seconds
    await asyncio.gather(*(_client(port, make, expected, seed, end, tally) for seed in range(clients)))
    return tally


async def _client(
    port: int,
    make: Callable[[random.Random], Ask],
    expected: Sequence[Answer],
    seed: int,
    end: float,
    tally: Tally,
) -> None:
    choose, streams = random.Random(seed), None
    while time.monotonic() < end:
        ask = make(choose)
        streams = streams or await asyncio.open_connection("127.0.0.1", port)
        begin = time.perf_counter()
        try:
            status, answers, stays = await exchange(ask, *streams)
        except (OSError, asyncio.IncompleteReadError):
            status, answers, stays = 0, [], False
        _note(tally, ask, status, answers, expected, time.perf_counter() - begin)
        if not stays:
            streams[1].close()
            streams = None
        if status == 503:
            await asyncio.sleep(0.2)
    if streams:
        streams[1].close()


async def exchange(
    ask: Ask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[int, list[Answer], bool]:
    """Status and answers, and whether the connection stays open."""
    writer.write(ask.head + ask.body)
    await writer.drain()
    if ask.leave:
        return 200, [], False
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    return int(head.split()[1]), body.get("answers", []), "connection: close" not in head


def _note(
    tally: Tally, ask: Ask, status: int, answers: list[Answer], expected: Sequence[Answer], seconds: float
) -> None:
    tally.statuses[f"{ask.kind}: {'left' if ask.leave else status or 'connection lost'}"] += 1
    if status == 503 or ask.leave:
        return
    if status not in ask.statuses:
        tally.wrong.append(f"{ask.kind}: status {status}")
        return
    same = [_plain(a) for a in answers] == [_plain(expected[i]) for i in ask.images]
    if not same:
        tally.wrong.append(f"{ask.kind}: another answer than to the single request")
    if ask.images:
        tally.seconds.append(seconds)
        tally.images += len(ask.images)


def _plain(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name not in ("index", "image")}
