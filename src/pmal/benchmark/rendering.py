"""Tables as Markdown, LaTeX, CSV, text and data. Figures are in percent."""

import csv
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pmal.benchmark.tables.latex import latex_table
from pmal.benchmark.tables.paper import Printed
from pmal.benchmark.tables.statistics import Difference, Mean
from pmal.reporting.tables import align


@dataclass(frozen=True)
class Beside:
    """Our figure and the paper's, if there is one."""

    ours: Mean | None
    paper: Printed | None

    @property
    def difference(self) -> float | None:
        """Our figure minus the other."""
        return None if self.ours is None or self.paper is None else self.ours.value - self.paper.value


Entry = str | Mean | Difference | Beside | None


@dataclass(frozen=True)
class Table:
    """Rows under heads. All figures of a column belong to one family of splits."""

    title: str
    family: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    number: int | None = None
    """The number of the paper's table that it repeats."""

    @property
    def caption(self) -> str:
        """The line above the table."""
        return f"{self.title}; family={self.family}"


FORMATS = ("markdown", "latex", "csv", "terminal")


def render(tables: Sequence[Table], form: str, width: int | None = None) -> str:
    """Return the tables in one of FORMATS, one below the other.

    Args:
        tables: the tables.
        form: one of FORMATS.
        width: of the terminal, in letters. A table that is wider is shown row by row. None: no limit.
    """
    if not tables:
        return "nothing in the ledger yet"
    if form == "terminal":
        return "\n\n".join(_terminal(table, width) for table in tables)
    parts = {"markdown": _markdown, "latex": _latex, "csv": _csv}
    return "\n\n".join(parts[form](table) for table in tables)


def as_data(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return the tables for JSON: a row by its heads, a figure by its parts."""
    return [
        {
            "title": table.title,
            "family": table.family,
            "table": table.number,
            "rows": [dict(zip(table.heads, map(_parts, row), strict=True)) for row in table.rows],
            "notes": list(table.notes),
        }
        for table in tables
    ]


def _parts(entry: Entry) -> Any:
    if entry is None or isinstance(entry, str):
        return entry
    difference = {"difference": entry.difference} if isinstance(entry, Beside) else {}
    return asdict(entry) | difference


def _markdown(table: Table) -> str:
    lines = ["| " + " | ".join(table.heads) + " |", "|" + "---|" * len(table.heads)]
    lines += ["| " + " | ".join(entry_text(entry) for entry in row) + " |" for row in table.rows]
    return "\n\n".join([f"**{table.caption}**", "\n".join(lines), *table.notes])


def _latex(table: Table) -> str:
    rows = [[entry_text(entry) for entry in row] for row in table.rows]
    numbers = [_kind([row[i] for row in table.rows]) is not str for i in range(len(table.heads))]
    return latex_table(table.caption, table.heads, rows, table.notes, numbers)


def _terminal(table: Table, width: int | None) -> str:
    rows = [list(table.heads), *([entry_text(entry) for entry in row] for row in table.rows)]
    text = align(rows)
    if width is None or max(map(len, text.splitlines())) <= width:
        return "\n".join([table.caption, text, *table.notes])
    blocks = [line for row in table.rows for line in _row_by_row(table.heads, row, width)]
    around = [textwrap.fill(line, width) for line in (table.caption, *table.notes)]
    return "\n".join([around[0], *blocks, *around[1:]])


def _row_by_row(heads: Sequence[str], row: Sequence[Entry], width: int) -> list[str]:
    """Return the words of a row on a line of their own, and its figures below, each behind its head."""
    cells = [(head, text) for head, text in zip(heads, map(entry_text, row), strict=True) if text]
    said = [entry for entry in row if isinstance(entry, str) and re.match(r"[^\d+-]", entry)]
    figures = [f"{head} {text}" for head, text in cells if text not in said]
    # A head and its figure stay on one line.
    joined = "; ".join(figure.replace(" ", "\0") for figure in figures)
    below = textwrap.wrap(joined, width, initial_indent="    ", subsequent_indent="    ")
    return textwrap.wrap(" | ".join(said), width) + [line.replace("\0", " ") for line in below]


def _csv(table: Table) -> str:
    """Return CSV with every figure in a column of its own; the family is the second column."""
    kinds = [_kind([row[i] for row in table.rows]) for i in range(len(table.heads))]
    columns = zip(table.heads, kinds, strict=True)
    heads = [word for head, kind in columns for word in _PARTS[kind](head)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "family", *heads])
    for row in table.rows:
        cells = [word for entry, kind in zip(row, kinds, strict=True) for word in _numbers(entry, kind)]
        writer.writerow([table.title, table.family, *cells])
    return out.getvalue().rstrip("\n")


_PARTS = {
    str: lambda head: [head],
    Mean: lambda head: [head, f"{head} deviation", f"{head} cells"],
    Difference: lambda head: [head, f"{head} low", f"{head} high", f"{head} splits"],
    Beside: lambda head: [
        head,
        f"{head} deviation",
        f"{head} cells",
        f"{head} paper",
        f"{head} difference",
    ],
}


def _kind(entries: Sequence[Entry]) -> type:
    return next((type(entry) for entry in entries if entry is not None), str)


def _numbers(entry: Entry, kind: type) -> list[str]:
    if entry is None:
        return [""] * len(_PARTS[kind](""))
    if isinstance(entry, Mean):
        return [_plain(entry.value), _plain(entry.deviation), str(entry.cells)]
    if isinstance(entry, Difference):
        return [*map(_plain, (entry.value, entry.low, entry.high)), str(entry.splits)]
    if isinstance(entry, Beside):
        ours = _numbers(entry.ours, Mean)
        return [*ours, _plain(entry.paper.value if entry.paper else None), _plain(entry.difference)]
    return [entry]


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"  # not -0.0


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def entry_text(entry: Entry) -> str:
    """Return one figure as people read it, such as `90.4 ± 1.2`."""
    if entry is None:
        return ""
    if isinstance(entry, Mean):
        deviation = "" if entry.deviation is None else f" ± {entry.deviation:.1f}"
        return f"{entry.value:.1f}{deviation}"
    if isinstance(entry, Difference):
        bounds = (entry.low, entry.high)
        interval = ", ".join(_signed(bound) for bound in bounds if bound is not None)
        return _signed(entry.value) + (f" [{interval}]" if interval else "")
    if isinstance(entry, Beside):
        return _beside(entry)
    return entry


def _beside(entry: Beside) -> str:
    """Return ours, the paper's and the difference, such as `90.4 ± 1.2 (n=5), paper 94.6: -4.2`."""
    paper = "" if entry.paper is None else f"paper {entry.paper.value:.1f}{'*' * entry.paper.own}"
    if entry.ours is None:
        return paper
    ours = f"{entry_text(entry.ours)} (n={entry.ours.cells})"
    return ours if entry.difference is None else f"{ours}, {paper}: {_signed(entry.difference)}"
