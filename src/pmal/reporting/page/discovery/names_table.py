"""The table that people write names into: a line per image, and back.

Columns: `file`, `group` (empty for leftovers) and `name`. A group that has one name gives it to all its lines
that have none; lines without a name are left out, and so are those that somebody deleted.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pmal._runtime.text import plain_cell
from pmal.errors import DataError
from pmal.reporting.page.discovery.pile import SortedPile

COLUMNS = ("file", "group", "name")
LIMIT = 64 << 20
"""Bytes of a table at most: more than half a million images."""


def names_table(pile: SortedPile) -> str:
    """Return the table of a pile as CSV, groups first, with no names in it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, group in enumerate(pile.groups, 1):
        rows = ((plain_cell(pile.samples.name(i)), number, "") for i in group.members.tolist())
        writer.writerows(rows)
    writer.writerows((plain_cell(pile.samples.name(i)), "", "") for i in pile.left)
    return text.getvalue()


def read_names(path: Path) -> dict[str, list[str]]:
    """Return the files of each name, names and files in the order of the table.

    Raises:
        DataError: the table cannot be read, has no names in it, or names one file in two ways.
    """
    rows = list(_rows(path))
    own: dict[str, set[str]] = {}
    for row in rows:
        if row["group"] and row["name"]:
            own.setdefault(row["group"], set()).add(row["name"])
    of_group = {group: next(iter(names)) for group, names in own.items() if len(names) == 1}
    found: dict[str, list[str]] = {}
    named: dict[str, str] = {}
    for row in rows:
        name = row["name"] or of_group.get(row["group"], "")
        if name and named.setdefault(row["file"], name) != name:
            both = " ".join(f"{row['file']} is {named[row['file']]} and {name}".split())
            raise DataError(f"{path}: {both}: give it one name")
        if name and row["file"] not in found.setdefault(name, []):
            found[name].append(row["file"])
    if not found:
        raise DataError(f"{path}: no names in it: write them into the column name, at least one for a group")
    return found


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the lines that have a file."""
    for number, row in enumerate(_lines(path), 2):
        cells = {name: _from_cell(row.get(name)) for name in COLUMNS}
        if not cells["file"] and any(cells.values()):
            raise DataError(f"{path}: line {number} has no file: name it, or delete the line")
        if cells["file"]:
            yield cells


def _lines(path: Path) -> Iterable[Mapping[str, str | None]]:
    try:
        if path.stat().st_size > LIMIT:
            raise DataError(f"{path}: larger than {LIMIT >> 20} MiB: split it")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not text in UTF-8: save it as CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="")
    try:
        names = reader.fieldnames or ()
        if not {"file", "name"} <= {*names}:
            found = " ".join(", ".join(names)[:80].split()) or "nothing"
            raise DataError(f"{path}: its first line has {found}: name the columns file and name")
        return list(reader)
    except csv.Error as error:
        raise DataError(f"{path}: not readable as CSV ({error})") from None


def _from_cell(cell: str | None) -> str:
    """Return the text of a cell, without the mark that keeps a spreadsheet from computing it."""
    text = (cell or "").strip()
    return text[1:] if text.startswith("'") and plain_cell(text[1:]) == text else text
