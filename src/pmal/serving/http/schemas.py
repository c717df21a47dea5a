"""What requests and answers look like, for the OpenAPI page; and what reads a body of embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
JSON = "application/json"
"""The types of bodies that are taken."""
Number = float | Literal["inf", "-inf", "nan"]
"""JSON has no numbers that are not finite: those are text."""


class Form(BaseModel):
    """One thing with its fields; others than these there are none."""

    model_config = ConfigDict(extra="forbid")


class Rows(Form):
    """Embeddings in the place of images."""

    embeddings: Annotated[list[list[float]], Field(min_length=1)]


class Prototype(Form):
    """A training image that stands for its class."""

    file: str
    id: int
    weight: Annotated[Number, Field(description="Its share in the answer of its class.")]
    picture: Annotated[str | None, Field(description="The path of its picture in this service.")]


class Answer(Form):
    """What the model says about an image."""

    index: Annotated[int, Field(description="The position of the image in the request.")]
    image: Annotated[str, Field(description="The name that the request gave it.")]
    class_: Annotated[str, Field(alias="class", description="Its class, or `unknown`.")]
    known: bool
    nearest: Annotated[str, Field(description="The class that it was taken for before the threshold.")]
    score: Annotated[Number, Field(description="Larger is more unknown.")]
    threshold: Number
    probability: Annotated[Number | None, Field(description="Of the nearest class; none of an added one.")]
    typicality: Annotated[Number | None, Field(description="Larger is less like any training image.")]
    typicality_threshold: Number | None
    p_value: Annotated[float | None, Field(description="How often a known image looks at least as unknown.")]
    because: Annotated[str | None, Field(description="Why it is unknown.")]
    prototypes: list[Prototype]


class Bad(Form):
    """An image that cannot be read."""

    index: int
    image: str
    reason: str


class Header(Form):
    """Whose answers they are, and by which rule."""

    name: str
    fingerprint: str
    classes: int
    score: Annotated[str, Field(description="The score that decides.")]
    accept: Annotated[float | None, Field(description="The share of known images to accept.")]
    per_class: bool
    note: Annotated[str, Field(description="What the threshold promises.")]


class Predictions(Form):
    """An answer for each image that could be read, and an error for each other one."""

    model: Header
    answers: list[Answer]
    errors: list[Bad]


class Class(Form):
    """A known class."""

    name: str
    threshold: Number | None
    added: Annotated[bool, Field(description="Whether it was added after training.")]
    prototypes: int
    picture: str | None


class Acceptance(Form):
    """Thresholds for other acceptance rates."""

    rates: list[float]
    per_class: bool
    thresholds: Annotated[list[list[Number]], Field(description="For each class, or once for all: by rate.")]
    typicality_thresholds: list[Number]
    notes: list[str]


class Histogram(Form):
    """How the deciding score spreads over held-out known images."""

    low: float
    high: float
    counts: list[int]


class RequestLimits(Form):
    """Limits of one request."""

    body_bytes: int
    pixels: int
    images: int


class Model(Header):
    """All about the model that a client may ask."""

    classes: list[Class]  # type: ignore[assignment]
    scores: Annotated[list[str], Field(description="The scores that can decide.")]
    guaranteed: bool
    takes: Literal["images", "embeddings"]
    encoder: str
    image_size: int
    channels: int
    acceptance: Acceptance | None
    known_scores: Histogram | None
    limits: RequestLimits


class Martingale(Form):
    """Evidence that images look more unknown than those held out."""

    evidence: Annotated[float, Field(description="The largest so far, in powers of ten.")]
    alarm: bool
    alarm_at: Annotated[int | None, Field(description="The answer at which it was given.")]


class Points(Form):
    """The course of it: columns of points at equal distances in answers."""

    answered: list[int]
    rejected: list[int]
    known: Annotated[list[float], Field(description="Evidence at this point, in powers of ten.")]
    traffic: list[float]


class Watched(Form):
    """What the service has answered since it watches this model, by p-values alone."""

    reason: Annotated[str | None, Field(description="Why nothing is watched.")]
    answered: int
    rejected: int
    rejection_rate: float | None
    expected_rejection_rate: Annotated[float, Field(description="Of known images.")]
    p_value_tenths: Annotated[list[int], Field(description="Answers by p-value: up to 0.1, to 0.2, ...")]
    known: Annotated[Martingale, Field(description="Of accepted images.")]
    traffic: Annotated[Martingale, Field(description="Of all images.")]
    false_alarms: Annotated[float, Field(description="How likely each alarm may ever be false.")]
    alarm: bool
    words: list[str]
    points: Points


class Status(Form):
    """The service is up."""

    status: str


class Problem(Form):
    """Why a request was refused, in one line."""

    error: str
    errors: Annotated[list[Bad] | None, Field(description="For each image, if none can be read.")] = None


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what a route may be refused with, for its page."""
    return {status: {"model": Problem, "description": _WHY[status]} for status in (400, 401, *statuses, 429)}


_WHY = {
    400: "Called by a foreign host name, or malformed HTTP.",
    401: "The service has keys, and the request has none of them.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the limit, or has too many images; it is not read to its end.",
    415: "A type that is not taken.",
    422: "No image of the request can be read: the reason, and one for each image. Or a wrong parameter.",
    429: "More requests per second than one client may send: try again after Retry-After seconds.",
    503: "Too many images wait: try again after Retry-After seconds.",
}
_BINARY = {"type": "string", "format": "binary"}
REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image as the body, or any number as the files of a form. A model of embeddings "
        "takes JSON instead. Nothing is stored.",
        "content": {
            FORM: {
                "schema": {"type": "object", "properties": {"image": {"type": "array", "items": _BINARY}}}
            },
            **{kind: {"schema": _BINARY} for kind in RAW_TYPES},
            JSON: {"schema": Rows.model_json_schema()},
        },
    }
}
"""A body is read as a stream, so that the limits hold: FastAPI does not see what it is made of."""
