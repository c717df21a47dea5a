"""Every kind of figure in every form of a table."""

import csv
import io

import pytest

from pmal.benchmark.rendering import FORMATS, Beside, Table, as_data, entry_text, render
from pmal.benchmark.tables.paper import Printed
from pmal.benchmark.tables.statistics import Difference, Mean

MEAN = Mean(90.44, 1.25, cells=5, splits=5)
TABLE = Table(
    "Methods",
    "arpl",
    ("method", "ACC", "AUROC", "difference", "nothing"),
    (
        ("softmax", MEAN, Beside(None, Printed(94.6)), None, None),
        ("pmal", None, Beside(MEAN, Printed(94.64)), Difference(-0.5, -0.75, 0.25, 5), None),
    ),
    ("a note",),
    number=2,
)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (None, ""),
        ("pmal", "pmal"),
        (MEAN, "90.4 ± 1.2"),
        (Mean(90.44, None, 1, 1), "90.4"),
        (Difference(0.46, None, None, 2), "+0.5"),
        (Difference(-0.04, -1.26, 0.04, 5), "+0.0 [-1.3, +0.0]"),
        (Beside(None, None), ""),
        (Beside(None, Printed(94.6)), "paper 94.6"),
        (Beside(None, Printed(94.6, own=True)), "paper 94.6*"),
        (Beside(MEAN, None), "90.4 ± 1.2 (n=5)"),
        (Beside(MEAN, Printed(94.64)), "90.4 ± 1.2 (n=5), paper 94.6: -4.2"),
    ],
)
def test_a_figure_for_people(entry, text):
    assert entry_text(entry) == text


def test_csv_has_a_column_for_every_part_and_every_row_fills_them():
    softmax, pmal = csv.DictReader(io.StringIO(render([TABLE], "csv")))
    assert softmax == {
        **{"table": "Methods", "family": "arpl", "method": "softmax", "nothing": ""},
        **{"ACC": "90.4400", "ACC deviation": "1.2500", "ACC cells": "5"},
        **{"AUROC": "", "AUROC deviation": "", "AUROC cells": "", "AUROC paper": "94.6000"},
        **{"AUROC difference": "", "difference": "", "difference low": "", "difference high": ""},
        "difference splits": "",
    }
    assert [pmal[name] for name in ("ACC", "ACC deviation", "ACC cells")] == ["", "", ""]
    assert (pmal["AUROC"], pmal["AUROC paper"], pmal["AUROC difference"]) == ("90.4400", "94.6400", "-4.2000")
    assert (pmal["difference low"], pmal["difference high"]) == ("-0.7500", "0.2500")


@pytest.mark.parametrize("form", ["markdown", "terminal"])
def test_family_and_notes_stand_beside_the_figures(form):
    first, *_, last = render([TABLE], form).splitlines()
    assert first.strip("*") == "Methods; family=arpl"
    assert last == "a note"


def test_data_say_which_table_of_the_paper_it_is():
    [found] = as_data([TABLE])
    assert (found["title"], found["family"], found["table"], found["notes"]) == (
        "Methods",
        "arpl",
        2,
        ["a note"],
    )
    assert found["rows"][0]["AUROC"] == {
        "ours": None,
        "paper": {"value": 94.6, "own": False},
        "difference": None,
    }


def test_latex_for_booktabs_with_every_special_letter_escaped():
    odd = Table("50 % of a_b & c", "arpl", ("name", "ACC"), (("[x] #1 {~^\\}", MEAN),), ("90 < 100",))
    assert render([odd], "latex").splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{50 \% of a\_b \& c; family=arpl}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"name & ACC \\",
        r"\midrule",
        r"{[}x{]} \#1 \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} & 90.4 $\pm$ 1.2 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\footnotesize 90 \textless{} 100",
        r"\end{table}",
    ]


def test_a_table_wider_than_the_terminal_is_shown_row_by_row():
    wide = render([TABLE], "terminal")
    assert render([TABLE], "terminal", 200) == wide
    narrow = render([TABLE], "terminal", 50)
    assert max(map(len, narrow.splitlines())) <= 50
    assert "\nsoftmax\n    ACC 90.4 ± 1.2; AUROC paper 94.6\n" in narrow
    words = set(wide.split()) - {"method", "nothing"}
    assert words - {"Methods;"} <= set(narrow.replace(";", " ").split())


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_ledger_is_told_of(form):
    assert render([], form) == "nothing in the ledger yet"
