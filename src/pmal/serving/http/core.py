"""How a request becomes answers: read, decoded, batched, answered; and how the model is changed meanwhile."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from pmal._runtime.processes.launch import usable_cores
from pmal.data.decoding.decode import TooManyPixels
from pmal.data.samples import BadImage
from pmal.errors import PmalError, UsageError
from pmal.serving.answers.traffic import Traffic
from pmal.serving.http.batching import MicroBatcher
from pmal.serving.http.connections import Connections
from pmal.serving.http.counters import Metrics
from pmal.serving.http.requests.clients import client_name
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.requests.upload import House, Limits, Upload, read_uploads
from pmal.serving.http.served_model import ServedModel
from pmal.serving.http.service_log import ACCESS

WAIT_SECONDS = 0.002
DECODERS = 8
"""Threads, at most."""
LARGE_PIXELS = 8_000_000
"""Images of more are decoded one at a time: a pixel takes up to 24 bytes meanwhile."""
SMALL_BYTES, SMALL_PIXELS = 16 << 10, 128 * 128
"""Images of no more are decoded where they arrive: to pass them to a thread would take longer."""
MOST_PATH = 200
ALARM = 0.01
"""How likely each alarm of the watch may ever be false."""
PREDICT = "/v1/predict"

Say = Callable[[str], None]
Keys = Callable[[], frozenset[bytes]]


class Service:
    """What the routes share."""

    def __init__(
        self,
        load: Callable[[], ServedModel],
        limits: Limits | None = None,
        *,
        keys: Keys = frozenset,
        proxies: Collection[str] = (),
        traffic: Traffic | None = None,
        wait_seconds: float = WAIT_SECONDS,
        say: Say = print,
    ) -> None:
        self.limits, self.say, self._load, self._load_keys = limits or Limits(), say, load, keys
        self.served, self.keys = load(), keys()
        self.house, self.metrics = House(self.limits), Metrics()
        self.traffic = traffic or Traffic(ALARM, None, say)
        self.traffic.follow(self.served.model, self.served.fingerprint)
        most, each = self.limits.connections, self.limits.client_connections
        self.connections = Connections(most, each, proxies)
        self.batcher: MicroBatcher[ServedModel] = MicroBatcher(
            lambda served, asked: served.answer(asked),
            lambda served: served.batch,
            wait_seconds,
            self.metrics.batches.observe,
        )
        self._decoders = ThreadPoolExecutor(min(DECODERS, usable_cores()), "pmal-decode")
        self._large_decoder = ThreadPoolExecutor(1, "pmal-decode-large")
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._show_figures()

    @contextlib.asynccontextmanager
    async def running(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the worker while the server runs, and read the model again at SIGHUP."""
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
        """Read model and keys again; if either is bad, those before go on."""
        async with self._reloading:
            try:
                served, keys = await asyncio.to_thread(lambda: (self._load(), self._load_keys()))
            except Exception as error:
                reason = str(error) if isinstance(error, PmalError) else repr(error)
                self.metrics.reloads.labels("failed").inc()
                self.say(f"reload failed, the old model continues to answer: {reason}")
                return
            self.served, self.keys = served, keys
            self.traffic.follow(served.model, served.fingerprint)
            self._show_model()
            self.metrics.reloads.labels("ok").inc()
            self.say(f"reloaded {self.served.name}: {self.served.fingerprint[:16]}")

    def deciding_by(self, score: str | None) -> ServedModel:
        """Return the model that decides by this score."""
        try:
            return self.served.deciding_by(score)
        except UsageError as error:
            raise Refused(422, str(error), unread=True) from None

    async def predict(self, request: Request, top: int, score: str | None = None) -> dict[str, Any]:
        """Answer all images of a request; those that are no images have errors instead of answers."""
        served = self.deciding_by(score)
        with self.house.guest(client_name(request.client.host if request.client else "")) as guest:
            uploads = await read_uploads(request, guest, served.takes_rows)
            return await self._while_connected(request, self._answer_all(served, uploads, top), len(uploads))

    def report(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request, and write it to the log of requests."""
        # Not the path itself: anybody could make up new ones without end.
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(status or "gone")).inc()
        if route == PREDICT and status == 200:
            self.metrics.seconds.observe(seconds)
        if ACCESS.isEnabledFor(logging.INFO):
            client = (scope.get("client") or ("",))[0]
            path, took = scope.get("path", ""), round(seconds, 6)
            fields = {"client": client, "method": scope.get("method", ""), "path": path[:MOST_PATH]}
            ACCESS.info("request", extra={"fields": {**fields, "status": status, "seconds": took}})

    def report_refused(self, status: int, client: str) -> None:
        """Count what never became a request."""
        self.report({"client": (client, 0)}, status, 0.0)

    async def _answer_all(self, served: ServedModel, uploads: Sequence[Upload], top: int) -> dict[str, Any]:
        if len(uploads) == 1:  # no task of its own
            found = [await self._answer_one(served, uploads[0], top)]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer_one(served, upload, top)) for upload in uploads]
            found = [task.result() for task in tasks]
        entries = [{"index": index, **entry} for index, entry in enumerate(found)]
        errors = [entry for entry in entries if "reason" in entry]
        for entry in entries:
            kind = "bad" if "reason" in entry else "known" if entry["known"] else "unknown"
            self.metrics.images.labels(kind).inc()
        self.traffic.observe(served.watched, [e["p_value"] for e in entries if "reason" not in e])
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
        with contextlib.suppress(TooManyPixels):
            if len(data) <= SMALL_BYTES:
                return served.decode(data, min(most, SMALL_PIXELS, LARGE_PIXELS))
        with contextlib.suppress(TooManyPixels):
            return await loop.run_in_executor(self._decoders, served.decode, data, min(most, LARGE_PIXELS))
        return await loop.run_in_executor(self._large_decoder, served.decode, data, most)

    async def _while_connected(self, request: Request, work: Any, images: int) -> dict[str, Any]:
        """Return the result, unless the client goes away first: then what has not begun is dropped."""
        answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.metrics.images.labels("dropped").inc(images)
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

    def _show_figures(self) -> None:
        watch = self.metrics.watch
        watch("pmal_images_inside", "Images waiting for their answer.", lambda: self.house.places)
        watch("pmal_images_waiting", "Images waiting for the network.", lambda: self.batcher.waiting)
        watch("pmal_body_bytes", "Bodies held in memory.", lambda: self.house.held)
        watch("pmal_connections", "Open connections.", lambda: self.connections.count)
        self._show_traffic()
        self._show_model()

    def _show_traffic(self) -> None:
        def seen(*names: str) -> Callable[[], float]:
            def read() -> float:
                found: Any = self.traffic.watch.state()
                for name in names:
                    found = found[name]
                return float(found)

            return read

        show = self.metrics.watch
        show("pmal_watch_answers", "Answers that are watched.", seen("answered"))
        show("pmal_watch_rejected", "Those of them rejected.", seen("rejected"))
        rate = seen("expected_rejection_rate")
        show("pmal_watch_expected_rate", "Share of known images that is rejected.", rate)
        for name, which in (("known", "accepted"), ("traffic", "all")):
            about = f"Evidence, in powers of ten, that {which} images look more unknown than those held out."
            show(f"pmal_watch_{name}_evidence", about, seen(name, "evidence"))
            about = f"1 from when the evidence on {which} images reached that of an alarm."
            show(f"pmal_watch_{name}_alarm", about, seen(name, "alarm"))

    def _show_model(self) -> None:
        self.metrics.model.info({"name": self.served.name, "fingerprint": self.served.fingerprint})


async def _gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
