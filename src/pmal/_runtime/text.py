"""Formatting of text for terminals, tables and other programs."""

from pathlib import PurePath


def plain_cell(value: str | int) -> str | int:
    """Return the text in a form that no spreadsheet evaluates as a formula.

    >>> plain_cell("=HYPERLINK(1)"), plain_cell("cat"), plain_cell(-1)
    ("'=HYPERLINK(1)", 'cat', -1)
    """
    # Also if quote marks are there already: removing one mark always gives the name back.
    risky = isinstance(value, str) and value.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if risky else value


def printable(text: str) -> str:
    r"""Return the text on one line and in valid Unicode, whatever bytes a file name has.

    >>> printable("größe <1>"), printable("two\nlines")
    ('größe <1>', 'two\\nlines')
    """
    return text if text.isprintable() else repr(text)[1:-1]


def short_path(path: str) -> str:
    """Return the last two parts of a path: a model or report should not reveal where the data are stored.

    >>> short_path("/home/me/photos/cat/1.jpg"), short_path("cat/1.jpg"), short_path("digits.parquet row 7")
    ('cat/1.jpg', 'cat/1.jpg', 'digits.parquet row 7')
    """
    return "/".join(PurePath(path).parts[-2:])


def counted(count: int, unit: str) -> str:
    """Return a number with its unit, in the plural unless it is 1.

    >>> counted(1, "epoch"), counted(1200, "epoch")
    ('1 epoch', '1,200 epochs')
    """
    return f"{count:,} {unit}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Return a duration in readable units.

    >>> duration(42.4), duration(59.9), duration(754), duration(7300)
    ('42 s', '1 min 00 s', '12 min 34 s', '2 h 01 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
