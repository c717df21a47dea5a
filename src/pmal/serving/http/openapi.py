"""What the OpenAPI page shows beyond the signatures."""

from typing import Any

from pmal.serving.http.requests.row_requests import JSON
from pmal.serving.http.requests.upload import FORM, RAW_TYPES

_BINARY = {"type": "string", "format": "binary"}
_MATRIX = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_MODEL = {
    "name": "digits",
    "fingerprint": "91f7136f...",
    "classes": 6,
    "score": "distance",
    "accept": 0.95,
    "per_class": False,
    "note": "accepts at least 95 % of known images on average; "
    "with 300 held-out images, this threshold accepts 92.8 to 96.9 % (90 % range)",
}
_ANSWER = {
    "index": 0,
    "image": "a.png",
    "class": "4",
    "known": True,
    "nearest": "4",
    "score": 0.0123,
    "threshold": 0.1232,
    "probability": 0.998,
    "typicality": 6.1,
    "typicality_threshold": 9.4,
    "p_value": 0.62,
    "because": None,
    "prototypes": [
        {
            "file": "4/17.png",
            "id": 4544,
            "weight": 0.31,
            "picture": "v1/prototypes/91f7136f234a13ff/1/0.png",
        }
    ],
}
_BAD = {"index": 1, "image": "b.txt", "reason": "not a JPEG, PNG, WebP, HEIC, BMP, GIF, TIFF or PPM image"}

_REFUSALS = {
    400: "Called by a foreign host name.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the limit, or has too many images; it is not read to its end.",
    415: "A type that is not taken.",
    422: "No image of the request can be read: the reason, and one for each image. Or a wrong parameter.",
    503: "Too many images wait: try again after Retry-After seconds.",
}

REQUEST: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One image as the body, or any number as the parts of a form. A model of embeddings "
        "takes JSON instead. Nothing is stored.",
        "content": {
            FORM: {
                "schema": {"type": "object", "properties": {"image": {"type": "array", "items": _BINARY}}}
            },
            **{kind: {"schema": _BINARY} for kind in RAW_TYPES},
            JSON: {"schema": {"type": "object", "properties": {"embeddings": _MATRIX}}},
        },
    }
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An answer for each image that could be read, and an error for each other one.",
        "content": {
            "application/json": {"example": {"model": _MODEL, "answers": [_ANSWER], "errors": [_BAD]}}
        },
    },
    **{
        status: {"description": text, "content": {"application/json": {"example": {"error": "why"}}}}
        for status, text in _REFUSALS.items()
    },
}
