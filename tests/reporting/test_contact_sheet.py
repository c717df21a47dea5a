"""Where everything stands on a contact sheet, by its pixels."""

import numpy as np
import pytest

from pmal.reporting.contact_sheet import CAPTION, GAP, MARGIN, SIDE, TITLE, Row, contact_sheet

RED = np.full((20, 30, 3), (255, 0, 0), np.uint8)
ROW = TITLE + SIDE + CAPTION + GAP


def ink(sheet):
    """Where the sheet is not white: left, top, right, bottom."""
    rows, columns = np.nonzero((np.asarray(sheet) != 255).any(axis=2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("rows", [[], [Row("", [])], [Row("", []), Row("", [])]])
def test_without_pictures_there_is_room_for_one(rows):
    sheet = contact_sheet("", rows)
    assert sheet.size == (2 * MARGIN + SIDE, 2 * MARGIN + TITLE + len(rows) * ROW)
    assert (np.asarray(sheet) == 255).all()


def test_rows_and_columns_are_where_they_belong():
    sheet = contact_sheet("", [Row("", []), Row("", [(RED, "")] * 2), Row("", [(RED, "")] * 3)])
    assert sheet.width == 2 * MARGIN + 3 * SIDE + 2 * GAP
    found = (np.asarray(sheet)[..., 1] == 0).nonzero()
    lefts = {MARGIN + column * (SIDE + GAP) for column in range(3)}
    tops = {MARGIN + TITLE + row * ROW + TITLE for row in (1, 2)}
    assert set(found[1]) == {left + x for left in lefts for x in range(SIDE)}
    assert set(found[0]) == {top + y for top in tops for y in range(SIDE)}


def test_a_long_title_ends_within_the_margin():
    for length in range(10, 40):
        sheet = contact_sheet("W" * length, [])
        left, _, right, _ = ink(sheet)
        assert left >= MARGIN
        assert right <= sheet.width - MARGIN
