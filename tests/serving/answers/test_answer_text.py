"""Answers as JSON, CSV and table, with names that are hard to write down."""

import csv
import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.serving.answers.answer_text import csv_text, error_lines, json_text, table_text, write_answers
from pmal.serving.answers.image_files import BadFile

ABOUT = {"score": "distance", "note": "accepts at least 0.95 of known samples"}
UNREADABLE = os.fsdecode(b"a\xff.png")
REJECTED = {"prototypes": [], "p_value": None, "because": "too far"}


def answer(image="a.png", known=True, nearest="cat", **other):
    prototypes = [{"file": f"{nearest}/{t}.png", "id": t, "weight": 0.5 / (t + 1)} for t in range(2)]
    entry = {"image": image, "class": nearest if known else "unknown", "known": known, "nearest": nearest}
    entry |= {"score": 0.12345678, "threshold": 0.25, "probability": 0.75, "prototypes": prototypes}
    entry |= {"typicality": 1.5, "typicality_threshold": 3.0, "p_value": 0.5, "because": None}
    return entry | other


def test_the_table():
    blocks = [[answer()], [answer("long name.png", known=False, score="inf", **REJECTED)]]
    assert "".join(table_text(ABOUT, blocks)).splitlines() == [
        "image          class    nearest  score     threshold  p      because  weight  prototype",
        "a.png          cat      cat      0.123457  0.25       0.500           0.500   cat/0.png",
        "                                                                      0.250   cat/1.png",
        "long name.png  unknown  cat      inf       0.25              too far",
        "score distance: accepts at least 0.95 of known samples",
    ]


def test_prototypes_below_the_current_folder_are_named_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / "cat" / "0.png", tmp_path.parent / "1.png"]
    prototypes = [{"file": str(file), "id": 0, "weight": 0.5} for file in files]
    text = "".join(table_text(ABOUT, [[answer(prototypes=prototypes)]]))
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["cat/0.png", str(files[1])]
    assert str(files[0]) in "".join(csv_text([[answer(prototypes=prototypes)]], 2)), "for programs as it is"


def test_the_table_without_prototypes_has_no_columns_for_them():
    text = "".join(table_text(ABOUT, [[answer(prototypes=[])]]))
    assert text.splitlines()[:2] == [
        "image  class  nearest  score     threshold  p      because",
        "a.png  cat    cat      0.123457  0.25       0.500",
    ]


def test_an_answer_without_prototypes_does_not_hide_those_of_others():
    text = "".join(table_text(ABOUT, [[answer("first.png", prototypes=[]), answer()]]))
    assert "cat/1.png" in text


def test_a_current_folder_that_is_gone_shortens_nothing(monkeypatch):
    def gone():
        raise FileNotFoundError("gone")

    monkeypatch.setattr(os, "getcwd", gone)
    assert "cat/0.png" in "".join(table_text(ABOUT, [[answer()]]))


def test_no_prototype_is_a_formula():
    prototypes = [{"file": "=HYPERLINK(1)", "id": 0, "weight": 0.5}]
    [_, line] = "".join(csv_text([[answer(prototypes=prototypes)]], 1)).splitlines()
    assert line.endswith(",'=HYPERLINK(1),0.5")


def test_what_is_no_json_is_never_written():
    for about, score in ((ABOUT | {"threshold": float("nan")}, 0.5), (ABOUT, float("inf"))):
        with pytest.raises(ValueError, match="JSON"):
            "".join(json_text(about, [[answer(score=score)]], []))


def test_names_cannot_break_the_lines_of_the_table():
    text = "".join(table_text(ABOUT, [[answer("two\nlines.png", nearest="\x1b[31mred")]]))
    assert len(text.splitlines()) == 4
    assert "\x1b" not in text


def test_no_answers_no_table():
    assert list(table_text(ABOUT, [])) == []
    assert list(table_text(ABOUT, [[]])) == []


NAMES = st.text(st.characters(codec="utf-8"), min_size=1)


@pytest.mark.slow
@given(st.lists(st.tuples(NAMES, NAMES)))
def test_csv_gives_every_name_back(names):
    blocks = [[answer(image, nearest=name) for image, name in names]]
    rows = list(csv.DictReader(io.StringIO("".join(csv_text(blocks, 2)), newline="")))
    assert [(plain(row["image"]), plain(row["nearest"])) for row in rows] == names
    assert [plain(row["prototype_2"]) for row in rows] == [f"{name}/1.png" for _, name in names]


def plain(cell):
    """Without the mark that keeps a spreadsheet from running it."""
    risky = cell.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r"))
    return cell[1:] if cell[:1] == "'" and risky else cell


def test_csv_columns_numbers_and_missing_prototypes():
    entries = [answer(probability=None), answer(known=False, score="inf")]
    header, first, second = "".join(csv_text([entries], 3)).splitlines()
    assert header == (
        "image,class,known,nearest,score,threshold,probability,typicality,typicality_threshold,p_value,because,"
        "prototype_1,weight_1,prototype_2,weight_2,prototype_3,weight_3"
    )
    assert first == "a.png,cat,1,cat,0.12345678,0.25,,1.5,3.0,0.5,,cat/0.png,0.5,cat/1.png,0.25,,"
    assert second == "a.png,unknown,0,cat,inf,0.25,0.75,1.5,3.0,0.5,,cat/0.png,0.5,cat/1.png,0.25,,"


def test_csv_and_json_come_block_by_block():
    def blocks():
        yield [answer("first.png")]
        raise RuntimeError("the second block was asked for")

    for pieces in (csv_text(blocks(), 3), json_text(ABOUT, blocks(), [])):
        seen = ""
        while "first.png" not in seen:
            seen += next(pieces)
        with pytest.raises(RuntimeError, match="second block"):
            next(pieces)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_json_is_one_object_with_what_failed_while_it_was_written(count):
    errors = [BadFile(UNREADABLE, "gone")]

    def blocks():
        for i in range(count):
            yield [answer(f"{i}\n.png")]
            errors.append(BadFile(f"bad {i}", "PNG: broken"))

    found = json.loads("".join(json_text(ABOUT, blocks(), errors)))
    assert list(found) == ["model", "answers", "errors"]
    assert found["model"] == ABOUT
    assert found["answers"] == [answer(f"{i}\n.png") for i in range(count)]
    assert [bad["image"] for bad in found["errors"]] == ["a\\udcff.png", *(f"bad {i}" for i in range(count))]
    assert found["errors"][0]["reason"] == "gone"


@pytest.mark.parametrize(("form", "start"), [("json", "{"), ("csv", "image,"), ("table", "image  ")])
def test_the_form_asked_for_is_written(form, start):
    out = io.StringIO()
    write_answers(out, form, ABOUT, [[answer()]], [], 3)
    assert out.getvalue().startswith(start)
    assert out.getvalue().endswith("\n")


def test_an_error_is_one_line_whatever_the_name():
    lines = error_lines([BadFile("two\nlines", "gone"), BadFile(UNREADABLE, "gone")])
    assert lines == ["two\\nlines: gone", "a\\udcff.png: gone"]
