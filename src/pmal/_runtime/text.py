"""Text for other programs."""


def plain_cell(value: str | int) -> str | int:
    """Text that no spreadsheet takes for a formula.

    >>> plain_cell("=HYPERLINK(1)"), plain_cell("cat"), plain_cell(-1)
    ("'=HYPERLINK(1)", 'cat', -1)
    """
    risky = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if risky else value
