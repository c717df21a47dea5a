"""Answers as text: JSON and CSV piece by piece, so that a long list is never held; a table for people."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from pmal._runtime.text import plain_cell, printable
from pmal.reporting.tables import align
from pmal.serving.answers.answer_rows import unicode_name
from pmal.serving.answers.image_files import BadFile

Answer = Mapping[str, Any]
Blocks = Iterable[Sequence[Answer]]
"""What `answer_files` gives."""

_COLUMNS = ("image", "class", "nearest", "score", "threshold", "p", "because")
_CSV_COLUMNS = (
    *("image", "class", "known", "nearest", "score", "threshold", "probability"),
    *("typicality", "typicality_threshold", "p_value", "because"),
)


def json_text(about: Mapping[str, Any], blocks: Blocks, errors: Sequence[BadFile]) -> Iterator[str]:
    """One object, an answer on each line. `errors` is read at the end: the blocks may still add to it."""
    yield f'{{"model": {json.dumps(about, allow_nan=False)}, "answers": ['
    comma = ""
    for block in blocks:
        for answer in block:
            yield f"{comma}\n{json.dumps(answer, allow_nan=False)}"
            comma = ","
    listed = [{"image": unicode_name(bad.name), "reason": bad.reason} for bad in errors]
    yield f'\n], "errors": {json.dumps(listed)}}}\n'


def csv_text(blocks: Blocks, top: int) -> Iterator[str]:
    """A line per image, with `top` pairs of columns for its prototypes."""
    pairs = [f"{name}_{rank}" for rank in range(1, top + 1) for name in ("prototype", "weight")]
    yield _csv_line([*_CSV_COLUMNS, *pairs])
    for block in blocks:
        for answer in block:
            yield _csv_line(_csv_row(answer, top))


def table_text(about: Mapping[str, Any], blocks: Blocks) -> Iterator[str]:
    """All answers with aligned columns, and the rule that they follow. Without answers, nothing."""
    rows = [row for block in blocks for answer in block for row in _table_rows(answer)]
    if not rows:
        return
    if any(prototype for *_, prototype in rows):
        rows.insert(0, [*_COLUMNS, "weight", "prototype"])
    else:
        rows = [list(_COLUMNS), *(row[: len(_COLUMNS)] for row in rows)]
    yield f"{align(rows)}\nscore {about['score']}: {about['note']}\n"


def error_lines(errors: Iterable[BadFile]) -> list[str]:
    """Each file that could not be answered, and why, on a line of its own."""
    return [printable(f"{bad.name}: {bad.reason}") for bad in errors]


def write_answers(
    out: TextIO, form: str, about: Mapping[str, Any], blocks: Blocks, errors: Sequence[BadFile], top: int
) -> None:
    """All answers as json, csv or table."""
    if form == "json":
        pieces = json_text(about, blocks, errors)
    elif form == "csv":
        pieces = csv_text(blocks, top)
    else:
        pieces = table_text(about, blocks)
    for piece in pieces:
        out.write(piece)


def _table_rows(answer: Answer) -> list[list[str]]:
    """A line for each prototype; what the image itself is stands on the first."""
    names = [printable(answer[name]) for name in ("image", "class", "nearest")]
    p_value = "" if answer["p_value"] is None else f"{answer['p_value']:.3f}"
    why = printable(answer["because"] or "")
    first = [*names, _figure(answer["score"]), _figure(answer["threshold"]), p_value, why]
    pairs = [[f"{float(p['weight']):.3f}", printable(_from_here(p["file"]))] for p in answer["prototypes"]]
    return [[*(first if i == 0 else [""] * len(first)), *pair] for i, pair in enumerate(pairs or [["", ""]])]


def _from_here(file: str) -> str:
    """As it would be typed: without what leads to the folder in which the command runs."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # that folder is gone
        return file


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _csv_row(answer: Answer, top: int) -> list[Any]:
    plain = {name: plain_cell(answer[name]) for name in ("image", "class", "nearest")}
    row = [(dict(answer) | plain | {"known": int(answer["known"])})[name] for name in _CSV_COLUMNS]
    pairs = [cell for p in answer["prototypes"] for cell in (plain_cell(p["file"]), p["weight"])]
    return [*row, *pairs, *([""] * (2 * top - len(pairs)))]


def _csv_line(row: Sequence[Any]) -> str:
    text = io.StringIO()
    # A field is quoted for the characters of the line's end: with both, no name can break its line.
    csv.writer(text, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"
