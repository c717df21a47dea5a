"""How a request becomes answers: read, decoded, batched, answered; and how the model is changed meanwhile."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from pmal._runtime.processes.launch import usable_cores
from pmal.data.decoding.decode import TooManyPixels
from pmal.data.samples import BadImage
from pmal.errors import PmalError, UsageError
from pmal.serving.http.batching import MicroBatcher
from pmal.serving.http.counters import Gauge, Metrics
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.requests.upload import House, Limits, Upload, read_uploads
from pmal.serving.http.served_model import ServedModel

WAIT_SECONDS = 0.002
DECODERS = 8
"""Threads, at most."""
LARGE_PIXELS = 8_000_000
"""Images of more are decoded one at a time: a pixel takes up to 24 bytes meanwhile."""
PREDICT = "/v1/predict"

Say = Callable[[str], None]


class Service:
    """What the routes share."""

    def __init__(
        self,
        load: Callable[[], ServedModel],
        limits: Limits | None = None,
        *,
        wait_seconds: float = WAIT_SECONDS,
        say: Say = print,
    ) -> None:
        self.limits, self.say, self._load = limits or Limits(), say, load
        self.served = load()
        self.house, self.metrics = House(self.limits), Metrics()
        self.batcher: MicroBatcher[ServedModel] = MicroBatcher(
            lambda served, asked: served.answer(asked),
            lambda served: served.batch,
            wait_seconds,
            self.metrics.batches,
        )
        self._decoders = ThreadPoolExecutor(min(DECODERS, usable_cores()), "pmal-decode")
        self._large_decoder = ThreadPoolExecutor(1, "pmal-decode-large")
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._add_gauges()

    @contextlib.asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """While the server runs: the worker, and SIGHUP, which reads the model anew."""
        loop = asyncio.get_running_loop()
        await self.batcher.start()
        # Outside the main thread, where tests are, no signal can be caught.
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        yield
        await self.batcher.stop()
        for threads in (self._decoders, self._large_decoder):
            threads.shutdown(wait=False, cancel_futures=True)

    async def reload(self) -> None:
        """Another bundle in the place of the old one, which goes on answering where the new one is bad."""
        async with self._reloading:
            try:
                self.served = await asyncio.to_thread(self._load)
            except Exception as error:
                reason = str(error) if isinstance(error, PmalError) else repr(error)
                self.metrics.reloads.add(result="failed")
                self.say(f"reload failed, the old model goes on answering: {reason}")
                return
            self.metrics.reloads.add(result="ok")
            self.say(f"reloaded {self.served.name}: {self.served.fingerprint[:16]}")

    def deciding_by(self, score: str | None) -> ServedModel:
        """The model where this score decides."""
        try:
            return self.served.deciding_by(score)
        except UsageError as error:
            raise Refused(422, str(error), unread=True) from None

    async def predict(self, request: Request, top: int, score: str | None = None) -> dict[str, Any]:
        """All images of a request; those that are no images have errors instead of answers."""
        served = self.deciding_by(score)
        with self.house.guest() as guest:
            uploads = await read_uploads(request, guest, served.takes_rows)
            guest.take(places=len(uploads) - 1)
            return await self._while_connected(request, self._answer_all(served, uploads, top), len(uploads))

    def report(self, route: str, status: int, seconds: float) -> None:
        self.metrics.requests.add(route=route, status=str(status or "gone"))
        if route == PREDICT and status == 200:
            self.metrics.seconds.observe(seconds)

    async def _answer_all(self, served: ServedModel, uploads: list[Upload], top: int) -> dict[str, Any]:
        asked = [asyncio.ensure_future(self._answer_one(served, upload, top)) for upload in uploads]
        try:
            found: list[dict[str, Any]] = await asyncio.gather(*asked)
        finally:
            for task in asked:  # after a failure, the others
                task.cancel()
        entries = [{"index": index, **entry} for index, entry in enumerate(found)]
        errors = [entry for entry in entries if "reason" in entry]
        for entry in entries:
            kind = "bad" if "reason" in entry else "known" if entry["known"] else "unknown"
            self.metrics.images.add(result=kind)
        if len(errors) == len(entries):
            raise Refused(422, errors[0]["reason"], errors=errors)
        return {
            "model": served.header,
            "answers": [e for e in entries if "reason" not in e],
            "errors": errors,
        }

    async def _answer_one(self, served: ServedModel, upload: Upload, top: int) -> dict[str, Any]:
        try:
            image = await self._decode(served, upload.data)
        except BadImage as reason:
            return {"image": upload.name, "reason": str(reason)}
        answer: dict[str, Any] = await self.batcher.ask(served, (image, upload.name, top))
        return answer

    async def _decode(self, served: ServedModel, data: bytes) -> Any:
        loop, most = asyncio.get_running_loop(), self.limits.pixels
        try:
            return await loop.run_in_executor(self._decoders, served.decode, data, min(most, LARGE_PIXELS))
        except TooManyPixels:
            if most <= LARGE_PIXELS:
                raise
        return await loop.run_in_executor(self._large_decoder, served.decode, data, most)

    async def _while_connected(self, request: Request, work: Any, images: int) -> dict[str, Any]:
        """The result, unless the client goes away first: then what has not begun is dropped."""
        answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.metrics.images.add(images, result="dropped")
                raise ClientDisconnect
            result: dict[str, Any] = answer.result()
            return result
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    def _on_hangup(self) -> None:
        task = asyncio.get_running_loop().create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_gauges(self) -> None:
        self.metrics.gauges += [
            Gauge("pmal_images_inside", "Images being read or waiting.", lambda: self.house.places),
            Gauge("pmal_images_waiting", "Images waiting for the network.", lambda: self.batcher.waiting),
            Gauge("pmal_body_bytes", "Bodies held in memory.", lambda: self.house.held),
            Gauge(
                "pmal_model_info",
                "The model that answers.",
                lambda: 1.0,
                lambda: {"name": self.served.name, "fingerprint": self.served.fingerprint},
            ),
        ]


async def _gone(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
