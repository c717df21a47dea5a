"""Are embeddings what they should be? Rows that are not finite, zero or equal to another."""

from collections.abc import Sequence

import numpy as np

from pmal.data.inspection.duplicates import find_equal
from pmal.data.inspection.images import Seen
from pmal.data.inspection.problems import Item, Problem, describe_image
from pmal.data.samples import NOT_FINITE, Samples, VectorStore

NOT_A_NUMBER = "not finite"
"""The kind of problem for which embeddings are refused."""


def look_at_rows(part: str, samples: Samples) -> Seen:
    """Return what is seen of the rows of a part. The digests are their bytes; minus zero is zero."""
    assert isinstance(samples.store, VectorStore)
    finite = samples.store.finite(samples.ids)
    digests = np.ascontiguousarray(samples.store.vectors[samples.ids] + np.float32(0)).view(np.uint8)
    unread = dict.fromkeys(np.flatnonzero(~finite).tolist(), NOT_FINITE)
    return Seen(part, samples, finite, digests, unread)


def row_problems(parts: Sequence[Seen]) -> list[Problem]:
    """Return all that is wrong with the rows."""
    broken = [{**_row(part, at), "reason": reason} for part in parts for at, reason in part.unread.items()]
    zero = [_row(part, at) for part in parts for at in np.flatnonzero(~part.digests.any(axis=1)).tolist()]
    return [
        Problem(NOT_A_NUMBER, "warning", f"rows have {NOT_FINITE}", "remove or embed them again", broken),
        Problem("zero", "warning", "rows are zero", "embed them again", zero),
        *find_equal(parts, "groups of equal rows"),
    ]


def _row(part: Seen, position: int) -> Item:
    return {"id": int(part.samples.ids[position]), **describe_image(part, position)}
