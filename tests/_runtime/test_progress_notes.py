import warnings

import pytest

from pmal._runtime.progress import Lines, Silent, notes_of_warnings


def test_a_warning_becomes_one_plain_line_at_the_end(capsys):
    with notes_of_warnings(Lines()) as notes:
        for text in ("two are alike", "three are alike", "two are alike"):
            warnings.warn(text, stacklevel=1)
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "warning: two are alike\nwarning: three are alike\n"
    assert notes == ["two are alike", "three are alike"]


def test_nothing_is_said_where_nothing_is_warned_of(capsys):
    with notes_of_warnings(Lines()) as notes:
        pass
    assert (notes, capsys.readouterr().err) == ([], "")


def test_a_silent_display_still_has_the_notes(capsys):
    with notes_of_warnings(Silent()) as notes:
        warnings.warn("two are alike", stacklevel=1)
    assert notes == ["two are alike"]
    assert capsys.readouterr().err == ""


def test_an_error_stays_the_only_line(capsys):
    def fail():
        with notes_of_warnings(Lines()):
            warnings.warn("two are alike", stacklevel=1)
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fail()
    assert capsys.readouterr().err == ""


def test_what_is_meant_for_programmers_is_left_to_the_filters_around():
    with pytest.raises(DeprecationWarning, match="old"), notes_of_warnings(Silent()):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with notes_of_warnings(Silent()) as notes:
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert notes == []
