"""The HTTP service: routes, and how a request becomes answers. Images are held in memory only until then."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

import pmal
from pmal.data.loading import usable_cores
from pmal.data.samples import BadImage
from pmal.errors import PmalError
from pmal.serving.predict import TOP
from pmal.serving.service_batching import MicroBatcher
from pmal.serving.service_errors import Refused
from pmal.serving.service_guard import Guard, allowed_hosts
from pmal.serving.service_metrics import Gauge, Metrics
from pmal.serving.service_model import ServedModel
from pmal.serving.service_openapi import REQUEST, RESPONSES
from pmal.serving.service_upload import House, Limits, Upload, read_uploads

WAIT_SECONDS = 0.002
MOST_PROTOTYPES = 100
DECODERS = 8
"""Threads, at most: each may hold the pixels of a largest image, twice."""
PREDICT = "/v1/predict"
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/scale.js": ("scale.js", "text/javascript"),
    "/camera.js": ("camera.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}

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
        self._decoders.shutdown(wait=False, cancel_futures=True)

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

    async def predict(self, request: Request, top: int) -> dict[str, Any]:
        """All images of a request; those that are no images have errors instead of answers."""
        with self.house.guest() as guest:
            uploads = await read_uploads(request, guest)
            guest.take(places=len(uploads) - 1)
            return await self._while_connected(request, self._answer_all(uploads, top), len(uploads))

    def report(self, route: str, status: int, seconds: float) -> None:
        self.metrics.requests.add(route=route, status=str(status or "gone"))
        if route == PREDICT and status == 200:
            self.metrics.seconds.observe(seconds)

    async def _answer_all(self, uploads: list[Upload], top: int) -> dict[str, Any]:
        served = self.served
        asked = [self._answer_one(served, upload, top) for upload in uploads]
        found: list[dict[str, Any]] = await asyncio.gather(*asked)
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
        loop = asyncio.get_running_loop()
        try:
            image = await loop.run_in_executor(self._decoders, served.decode, upload.data, self.limits.pixels)
        except BadImage as reason:
            return {"image": upload.name, "reason": str(reason)}
        answer: dict[str, Any] = await self.batcher.ask(served, (image, upload.name, top))
        return answer

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


def create_app(service: Service, bound: str = "127.0.0.1", hosts: Collection[str] = ()) -> ASGIApp:
    """The app of a service that listens on the address `bound`, or is called by other names."""
    app = FastAPI(
        title="pmal",
        version=pmal.__version__,
        description="Open-set recognition: the class of an image, or unknown.",
        docs_url=None,
        redoc_url=None,
        lifespan=service.running,
    )
    _add_api(app, service)
    _add_health(app, service)
    _add_page(app)
    _add_errors(app)
    # Around all, and not as a middleware of the app, which would not see its answers to failures.
    return Guard(app, allowed_hosts(bound, hosts), service.report)


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post(PREDICT, responses=RESPONSES, openapi_extra=REQUEST, tags=["model"])
    async def predict(
        request: Request,
        top: Annotated[
            int, Query(ge=0, le=MOST_PROTOTYPES, description="Prototypes to show for each image.")
        ] = TOP,
    ) -> JSONResponse:
        """The class of each image, or unknown, with its score and the prototypes that it is nearest to."""
        return JSONResponse(await service.predict(request, top))

    @app.get("/v1/model", response_description="The model.", tags=["model"])
    async def model() -> JSONResponse:
        """The classes, the rule of rejection, thresholds for other acceptance rates, and the limits."""
        limits = service.limits
        shown = {"body_bytes": limits.body_bytes, "pixels": limits.pixels, "images": limits.images}
        return JSONResponse({**service.served.about, "limits": shown})

    @app.get(
        "/v1/prototypes/{fingerprint}/{k}/{rank}.png",
        response_description="A PNG.",
        tags=["model"],
        response_class=Response,
    )
    async def prototype(
        fingerprint: str, k: Annotated[int, Path(ge=0)], rank: Annotated[int, Path(ge=0)]
    ) -> Response:
        """The picture of a prototype, by the path that an answer has."""
        png = service.served.picture(fingerprint, k, rank)
        if png is None:
            raise Refused(404, "this model has no such prototype")
        return Response(png, media_type="image/png", headers={"Cache-Control": "max-age=86400, immutable"})


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_description="It does.", tags=["operation"])
    @app.head("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @app.get("/readyz", response_description="Ready.", tags=["operation"])
    @app.head("/readyz", include_in_schema=False)
    async def readyz() -> dict[str, str]:
        """A model is loaded, and its worker runs."""
        if not service.batcher.alive:
            raise Refused(503, "the worker has ended: restart the service", retry_after=10)
        return {"status": "ready"}

    @app.get(
        "/metrics", response_description="Text, version 0.0.4.", tags=["operation"], response_class=Response
    )
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    folder = resources.files("pmal.serving") / "service_page"
    for path, (file, kind) in PAGE.items():
        app.add_route(path, _route((folder / file).read_bytes(), kind), methods=["GET", "HEAD"])


def _route(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def show(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return show


def _add_errors(app: FastAPI) -> None:
    """Every error has the same form, and says nothing about the inside."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))
        return Refused(422, f"{where}: {first['msg']}", unread=True).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "internal error: the log of the service has the reason"}, 500)


async def _gone(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
