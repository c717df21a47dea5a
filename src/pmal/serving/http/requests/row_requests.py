"""Embeddings in the body of a request, as JSON: `{"embeddings": [[0.5, ...], ...]}`."""

import json
from typing import Any

import numpy as np

from pmal.data.conversions import single_precision
from pmal.data.samples import NOT_FINITE, BadImage, Vectors
from pmal.serving.http.requests.refusals import Refused

JSON = "application/json"
FORM = '{"embeddings": [[0.5, ...], ...]}'


def pack_rows(data: bytes, most: int) -> list[tuple[str, bytes]]:
    """Return the name of each row of a body, and its numbers as the bytes of float32.

    most: rows of one request.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(422, f"the body is not JSON: send {FORM}") from None
    rows = body.get("embeddings") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        raise Refused(422, f"no embeddings in the body: send {FORM}")
    if len(rows) > most:
        raise Refused(413, f"more than {most} rows in one request")
    return [(f"embeddings[{i}]", _pack(row, i)) for i, row in enumerate(rows)]


def unpack_row(data: bytes, width: int) -> Vectors:
    """Return the numbers of a row, (D,). Raises `BadImage` where a model of this width cannot take them."""
    vector: Vectors = np.frombuffer(bytearray(data), dtype=np.float32)
    if len(vector) != width:
        raise BadImage(f"{len(vector)} numbers, but the model takes {width}")
    if not np.isfinite(vector).all():
        raise BadImage(NOT_FINITE)
    return vector


def _pack(row: Any, i: int) -> bytes:
    try:
        if not isinstance(row, list) or any(type(number) not in (int, float) for number in row):
            raise ValueError
        return single_precision(np.array(row, dtype=np.float64)).tobytes()
    except (ValueError, OverflowError):
        raise Refused(422, f"embeddings[{i}] is not a list of numbers: send {FORM}") from None
