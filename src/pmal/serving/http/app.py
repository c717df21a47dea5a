"""The HTTP service: its routes, its page, and the form of its errors."""

from collections.abc import Callable, Collection, Mapping
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

import pmal
from pmal.serving.answers.answering import TOP
from pmal.serving.http.core import PREDICT, Service
from pmal.serving.http.requests.guard import Guard, Rules, allowed_hosts
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.schemas import REQUEST, Model, Predictions, Status, Watched, refusals

MOST_PROTOTYPES = 100
Score = Annotated[
    str | None,
    Query(
        max_length=64,
        description="The score that decides, one of `scores` of /v1/model; threshold, p-value and reason"
        " follow it. Without it, the score of the model.",
    ),
]
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/scale.js": ("scale.js", "text/javascript"),
    "/traffic.js": ("traffic.js", "text/javascript"),
    "/corrections.js": ("corrections.js", "text/javascript"),
    "/camera.js": ("camera.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html"),
    "/docs.js": ("docs.js", "text/javascript"),
}


def create_app(service: Service, bound: str = "127.0.0.1", hosts: Collection[str] = ()) -> ASGIApp:
    """Return the app of a service that listens on the address `bound`, or is called by other names."""
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
    _add_page(app, PAGE if not service.served.takes_rows else PAGE | {"/": PAGE["/docs"]})
    _add_errors(app)
    # Around all, and not as a middleware of the app, which would not see its answers to failures.
    rules = Rules(allowed_hosts(bound, hosts), lambda: service.keys, service.limits.rate)
    return Guard(app, rules, service.report)


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post(
        PREDICT,
        responses=refusals(408, 413, 415, 422, 503),
        openapi_extra=REQUEST,
        response_model=Predictions,
        tags=["model"],
    )
    async def predict(
        request: Request,
        top: Annotated[
            int, Query(ge=0, le=MOST_PROTOTYPES, description="Prototypes to show for each image.")
        ] = TOP,
        score: Score = None,
    ) -> JSONResponse:
        """Return the class of each image, or unknown, with its score and its nearest prototypes."""
        return JSONResponse(await service.predict(request, top, score))

    @app.get("/v1/model", responses=refusals(422), response_model=Model, tags=["model"])
    def model(score: Score = None) -> JSONResponse:  # not async: that of another score takes a while
        """Return classes, the rule of rejection, thresholds for other acceptance rates, and limits."""
        limits = service.limits
        shown = {"body_bytes": limits.body_bytes, "pixels": limits.pixels, "images": limits.images}
        return JSONResponse({**service.deciding_by(score).about, "limits": shown})

    @app.get("/v1/traffic", responses=refusals(), response_model=Watched, tags=["model"])
    async def traffic() -> JSONResponse:
        """Return how many images were rejected, and whether traffic still looks as held-out images did."""
        return JSONResponse(service.traffic.state())

    @app.get(
        "/v1/prototypes/{fingerprint}/{k}/{rank}.png",
        responses={200: {"content": {"image/png": {}}}, **refusals(404, 422)},
        tags=["model"],
        response_class=Response,
    )
    def prototype(  # not async: a thread encodes it, and nobody waits meanwhile
        fingerprint: str, k: Annotated[int, Path(ge=0)], rank: Annotated[int, Path(ge=0)]
    ) -> Response:
        """Return the picture of a prototype, by the path that an answer has."""
        png = service.served.picture(fingerprint, k, rank)
        if png is None:
            raise Refused(404, "this model has no such prototype")
        return Response(png, media_type="image/png", headers={"Cache-Control": "max-age=86400, immutable"})


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=Status, tags=["operation"])
    @app.head("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        """Tell that the process runs."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", responses=refusals(503), response_model=Status, tags=["operation"])
    @app.head("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        """Tell that a model is loaded, and its worker runs."""
        if not service.batcher.alive:
            raise Refused(503, "the worker has ended: restart the service", retry_after=10)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", responses=refusals(), tags=["operation"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return figures for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_page(app: FastAPI, page: Mapping[str, tuple[str, str]]) -> None:
    """Add the page to try images on; a model of embeddings shows its routes in that place."""
    folder = resources.files("pmal.serving.http") / "page"
    for path, (file, kind) in page.items():
        app.add_route(path, _route((folder / file).read_bytes(), kind), methods=["GET", "HEAD"])


def _route(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def show(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return show


def _add_errors(app: FastAPI) -> None:
    """Give every error the same form, which says nothing about the inside."""

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
