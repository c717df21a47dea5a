"""Text that goes to spreadsheets and terminals."""

import pytest

from pmal._runtime.text import plain_cell, printable


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(first):
    assert plain_cell(f"{first}SUM(A1)") == f"'{first}SUM(A1)"
    assert plain_cell(f"a{first}") == f"a{first}"


def test_figures_stay_figures():
    assert plain_cell(-3) == -3


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "a\u202eb", "caf\udce9"])
def test_what_would_move_a_cursor_or_is_no_unicode_is_spelled_out(text):
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode()
    assert "\\" in shown
    assert shown[0] == text[0] or text[0] == "\x1b"
