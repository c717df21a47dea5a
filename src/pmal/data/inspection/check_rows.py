"""Are embeddings what they should be? Counts, width, rows that are not finite, zero or equal to another."""

from collections import Counter
from typing import Any

import numpy as np

from pmal._runtime.text import printable
from pmal.data.samples import NOT_FINITE, Ids, Samples, Source, VectorStore

LISTED = 20


def holds_rows(source: Source) -> bool:
    """Return whether a source has embeddings in the place of images."""
    return isinstance(source.train.store, VectorStore)


def check_rows(source: Source) -> dict[str, Any]:
    """Look at every row once. The result is plain JSON."""
    parts = {"train": source.train, "test": source.test}
    given = {name: part for name, part in parts.items() if part is not None}
    groups = _equal_rows(given)
    return {
        "source": source.name,
        "parts": {name: _part_result(name, part, groups) for name, part in given.items()},
        "shared_across": [_listed(g, given) for g in groups if len({part for part, _ in g}) > 1],
    }


def describe_rows_check(found: dict[str, Any]) -> str:
    """Return the result for people."""
    lines = [f"{printable(found['source'])}:"]
    for name, part in found["parts"].items():
        counts = list(part["per_class"].values())
        lines += [
            f"  {name}: {part['total']:,} rows of {part['width']:,} numbers, {len(counts)} classes",
            f"    rows per class: {min(counts):,} to {max(counts):,}",
            *_lines(NOT_FINITE, [bad["name"] for bad in part["unreadable"]]),
            *_lines("zero rows", part["zero"]),
            *_lines("equal rows of one class", [" = ".join(group) for group in part["duplicates"]]),
            *_lines("equal rows in different classes", [" = ".join(group) for group in part["conflicts"]]),
        ]
    if len(found["parts"]) > 1:
        lines += _lines("equal rows in both parts", [" = ".join(group) for group in found["shared_across"]])
    return "\n".join(lines)


def _part_result(name: str, samples: Samples, groups: list[list[tuple[str, int]]]) -> dict[str, Any]:
    store = _store(samples)
    rows_ND = store.vectors[samples.ids]
    finite, zero = store.finite(samples.ids), ~rows_ND.any(axis=1)
    counts = Counter(samples.labels.tolist())
    here = [[position for part, position in group if part == name] for group in groups]
    here = [group for group in here if len(group) > 1]
    same: dict[bool, list[list[str]]] = {True: [], False: []}
    for group in here:
        one_class = len({int(samples.labels[p]) for p in group}) == 1
        same[one_class].append([samples.name(p) for p in group])
    return {
        "total": len(samples),
        "width": rows_ND.shape[1],
        "per_class": {text: counts[k] for k, text in enumerate(samples.class_names)},
        "unreadable": [
            {"id": int(samples.ids[p]), "name": samples.name(p), "reason": NOT_FINITE}
            for p in np.flatnonzero(~finite).tolist()
        ],
        "zero": [samples.name(p) for p in np.flatnonzero(zero).tolist()],
        "duplicates": same[True],
        "conflicts": same[False],
    }


def _equal_rows(parts: dict[str, Samples]) -> list[list[tuple[str, int]]]:
    """Part and position of every finite row that occurs twice or more, group by group."""
    places = [(name, p) for name, part in parts.items() for p in _finite(part).tolist()]
    rows = np.concatenate([_store(part).vectors[part.ids[_finite(part)]] for part in parts.values()])
    rows = np.ascontiguousarray(rows + np.float32(0))  # minus zero is zero
    _, which, times = np.unique(
        rows.view(f"V{rows.dtype.itemsize * rows.shape[1]}").ravel(), return_inverse=True, return_counts=True
    )
    groups: dict[int, list[tuple[str, int]]] = {}
    for row in np.flatnonzero(times[which] > 1).tolist():
        groups.setdefault(int(which[row]), []).append(places[row])
    return list(groups.values())


def _finite(samples: Samples) -> Ids:
    return np.flatnonzero(_store(samples).finite(samples.ids))


def _store(samples: Samples) -> VectorStore:
    assert isinstance(samples.store, VectorStore)
    return samples.store


def _listed(group: list[tuple[str, int]], parts: dict[str, Samples]) -> list[str]:
    return [parts[part].name(position) for part, position in group]


def _lines(title: str, names: list[str]) -> list[str]:
    more = [f"      and {len(names) - LISTED:,} more"] if len(names) > LISTED else []
    return [f"    {title}: {len(names):,}", *(f"      {printable(name)}" for name in names[:LISTED]), *more]
