"""Answers as text: JSON and CSV piece by piece, so that a long list never fills the memory, or a table."""

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
"""Answers, block by block."""

_COLUMNS = ("image", "class", "nearest", "score", "threshold", "p", "because")
_CSV_COLUMNS = (
    *("image", "class", "known", "nearest", "score", "threshold", "probability"),
    *("typicality", "typicality_threshold", "p_value", "because"),
)


def json_text(about: Mapping[str, Any], blocks: Blocks, errors: Sequence[BadFile]) -> Iterator[str]:
    """Yield one JSON object piece by piece, with an answer on each line.

    Args:
        about: description of the model.
        blocks: answers.
        errors: files without an answer. It is read at the end, because the blocks may still add to it.
    """
    yield f'{{"model": {json.dumps(about, allow_nan=False)}, "answers": ['
    comma = ""
    for block in blocks:
        for answer in block:
            yield f"{comma}\n{json.dumps(answer, allow_nan=False)}"
            comma = ","
    listed = [{"image": unicode_name(bad.name), "reason": bad.reason} for bad in errors]
    yield f'\n], "errors": {json.dumps(listed)}}}\n'


def csv_text(blocks: Blocks, top: int) -> Iterator[str]:
    """Yield a line for each image, with `top` pairs of columns for its prototypes."""
    pairs = [f"{name}_{rank}" for rank in range(1, top + 1) for name in ("prototype", "weight")]
    yield _csv_line([*_CSV_COLUMNS, *pairs])
    for block in blocks:
        for answer in block:
            yield _csv_line(_csv_row(answer, top))


def table_text(about: Mapping[str, Any], blocks: Blocks) -> Iterator[str]:
    """Yield all answers in aligned columns, and the rule behind them. Without answers, yield nothing."""
    rows = [row for block in blocks for answer in block for row in _table_rows(answer)]
    if not rows:
        return
    if any(prototype for *_, prototype in rows):
        rows.insert(0, [*_COLUMNS, "weight", "prototype"])
    else:
        rows = [list(_COLUMNS), *(row[: len(_COLUMNS)] for row in rows)]
    yield f"{align(rows)}\nscore {about['score']}: {about['note']}\n"


def error_lines(errors: Iterable[BadFile]) -> list[str]:
    """Return one line for each file without an answer, with the reason."""
    return [printable(f"{bad.name}: {bad.reason}") for bad in errors]


def write_answers(
    out: TextIO, form: str, about: Mapping[str, Any], blocks: Blocks, errors: Sequence[BadFile], top: int
) -> None:
    """Write all answers as JSON, CSV or a table.

    Args:
        out: where to write.
        form: json, csv or table.
        about: description of the model.
        blocks: answers.
        errors: files without an answer.
        top: number of prototypes in a line of CSV.
    """
    if form == "json":
        pieces = json_text(about, blocks, errors)
    elif form == "csv":
        pieces = csv_text(blocks, top)
    else:
        pieces = table_text(about, blocks)
    for piece in pieces:
        out.write(piece)


def _table_rows(answer: Answer) -> list[list[str]]:
    """Return a line for each prototype. Only the first line describes the image."""
    names = [printable(answer[name]) for name in ("image", "class", "nearest")]
    p_value = "" if answer["p_value"] is None else f"{answer['p_value']:.3f}"
    why = printable(answer["because"] or "")
    first = [*names, _figure(answer["score"]), _figure(answer["threshold"]), p_value, why]
    pairs = [[f"{float(p['weight']):.3f}", printable(_from_here(p["file"]))] for p in answer["prototypes"]]
    return [[*(first if i == 0 else [""] * len(first)), *pair] for i, pair in enumerate(pairs or [["", ""]])]


def _from_here(file: str) -> str:
    """Return the path as a user would type it: relative if the file is below the current folder."""
    try:
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the current folder was deleted
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
    # Fields with characters of the line end are quoted. With both characters, no name can break its line.
    csv.writer(text, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"
