"""Embeddings in the body of a request, as JSON: `{"embeddings": [[0.5, ...], ...]}`."""

import numpy as np
from pydantic import ValidationError

from pmal.data.conversions import single_precision
from pmal.data.samples import NOT_FINITE, BadImage, Vectors
from pmal.serving.http.requests.refusals import Refused
from pmal.serving.http.schemas import Rows

FORM = '{"embeddings": [[0.5, ...], ...]}'


def pack_rows(data: bytes, most: int) -> list[tuple[str, bytes]]:
    """Return the name of each row of a body, and its numbers as the bytes of float32.

    Args:
        data: the body.
        most: rows of one request.
    """
    try:
        rows = Rows.model_validate_json(data, strict=True).embeddings
    except ValidationError as error:
        raise Refused(422, f"{_reason(error)}: send {FORM}") from None
    if len(rows) > most:
        raise Refused(413, f"more than {most} rows in one request")
    return [(f"embeddings[{i}]", single_precision(np.array(row)).tobytes()) for i, row in enumerate(rows)]


def unpack_row(data: bytes, width: int) -> Vectors:
    """Return the numbers of a row, (D,). Raises `BadImage` if a model of this width cannot take them."""
    vector: Vectors = np.frombuffer(data, dtype=np.float32)
    if len(vector) != width:
        raise BadImage(f"{len(vector)} numbers, but the model takes {width}")
    if not np.isfinite(vector).all():
        raise BadImage(NOT_FINITE)
    return vector


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return "the body is not JSON"
    if len(first["loc"]) > 1:
        return f"embeddings[{first['loc'][1]}] is not a list of numbers"
    return "no embeddings in the body"
