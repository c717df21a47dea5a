"""The page of a ledger: which chapters it has, what they show, and what they say is missing."""

import re
from pathlib import Path

import pytest

from benchmarks.ledger_page.__main__ import write_ledger_page
from benchmarks.ledger_page.chapters import ledger_page
from pmal.benchmark.ablations import GRIDS
from pmal.benchmark.cells.cell import make_cell
from pmal.benchmark.ledger import Ledger
from pmal.benchmark.tables.method_tables import methods_tables, paired_tables
from pmal.benchmark.tables.paper import sweep_figures
from pmal.errors import DataError
from pmal.reporting.page.document import Details, Figure, render_page
from tests.benchmark.ledgers import grid_records, made_up, mining_record, record


def cell(method="pmal", source="cifar10", family="arpl", split=0, epochs=100, settings=(), **words):
    return make_cell(method, source, family, split, 0, recipe="strong", epochs=epochs, settings=settings)


def sections_of(folder, *records):
    page = ledger_page(made_up(folder, *records).folder, pytest.fail)
    return {section.name: section for section in page.sections}


def figures_of(section):
    return [block for block in section.blocks if isinstance(block, Figure)]


def texts(tables):
    return [[[c.text for c in row] for row in table.rows] for table in tables]


def test_a_whole_ledger_as_one_file(tmp_path):
    main = [
        record(cell(m, split=s), 0.9, logit=0.8, probability=0.7) for m in ("softmax", "pmal") for s in (0, 2)
    ]
    ledger = made_up(tmp_path, *main, *grid_records(), mining_record())
    page = ledger_page(ledger.folder, pytest.fail)
    assert [section.name for section in page.sections] == [
        "methods",
        "paired",
        "curves",
        "ablations",
        "minings",
        "making",
    ]
    names = [figure.name for section in page.sections for figure in figures_of(section)]
    assert len(set(names)) == len(names) == 1 + 1 + 2 + 2
    text = render_page(page)
    assert len(text) < 1_000_000
    assert all(
        "family=arpl" in heading for heading in re.findall(r'<h3 class="block-title">(.*?)</h3>', text)
    )
    assert str(tmp_path) not in text


def test_chapters_without_cells_are_left_out(tmp_path):
    assert list(sections_of(tmp_path / "a", record(cell("softmax"), logit=0.5))) == ["methods", "making"]
    assert list(sections_of(tmp_path / "b", mining_record())) == ["minings", "making"]


def test_the_tables_are_those_of_the_command(tmp_path):
    records = [record(cell("softmax", split=s), 0.9 + s / 100, logit=0.8) for s in (0, 1)]
    weight = ["optimization.weight=2"]
    records += [record(cell(split=s, settings=weight), 0.95, logit=0.9, distance=0.7) for s in (0, 1)]
    found = sections_of(tmp_path, *records)
    results = made_up(tmp_path).results()[0]
    [expected], [table] = methods_tables(results), found["methods"].blocks[:1]
    assert table.title == expected.caption == "Methods; family=arpl"
    assert [c.text for c in table.head] == [
        "data, splits",
        "method, epochs",
        "passes",
        "n",
        "ACC",
        "AUROC logit",
        "AUROC distance",
    ]
    assert texts([table])[0][:2] == [
        ["oscri, strong"],
        ["cifar10, 0, 1; seed 0", "softmax, 100", "100", "2", "90.5", "80.0", "·"],
    ]
    assert table.rows[1][4].note == "± 0.7"
    assert [c.number for c in table.rows[1]] == [False, False, True, True, True, True, True]
    assert "cifar10 splits 0 and 1 have the same known classes" in table.note
    [details] = [block for block in found["methods"].blocks if isinstance(block, Details)]
    assert {t.title for t in details.blocks} == {
        "Table 1, closed-set ACC; family=arpl",
        "Table 1, AUROC; family=arpl",
    }


def test_differences_are_dots_with_their_intervals(tmp_path):
    records = []
    for split, gain in ((0, 0.01), (2, 0.02), (4, 0.06)):
        records.append(record(cell(split=split), logit=0.8 + gain, softmax={"logit": 0.8}))
    records += [record(cell(m, family="neal"), logit=0.8) for m in ("softmax", "cpn")]
    section = sections_of(tmp_path, *records)["paired"]
    arpl, neal = figures_of(section)
    [row] = arpl.data["groups"][0]["rows"]
    logit = [series["name"] for series in arpl.data["series"]].index("AUROC logit")
    assert row["dots"][logit] == [3.0, 1.0, 6.0]
    assert (row["name"], row["note"]) == ("pmal, 100 + 100", "minus softmax, 100; 3 splits")
    assert neal.data["groups"][0]["rows"][0]["dots"][logit] == [0.0, None, None]
    assert [arpl.title, neal.title] == ["family=arpl", "family=neal"]
    assert [t.title for t in section.blocks[-1].blocks] == [
        t.caption for t in paired_tables(made_up(tmp_path).results()[0])
    ]
    assert section.lead.endswith("No softmax of equal cost: cifar10, pmal 100 + 100.")


def test_softmaxes_of_equal_cost_are_rows_and_none_is_missing(tmp_path):
    equal = [cell("softmax", epochs=347), cell("softmax", epochs=116).together(3)]
    pmal = record(cell(), logit=0.8, softmax={"logit": 0.7})
    found = sections_of(tmp_path, pmal, *(record(one, logit=0.8) for one in equal))
    [figure] = figures_of(found["paired"])
    assert [row["note"] for row in figure.data["groups"][0]["rows"]] == [
        "minus softmax, 100; 1 split",
        "minus softmax of equal cost, 347; 1 split",
        "minus softmax ensemble of 3, 116; 1 split",
    ]
    assert "No softmax" not in found["paired"].lead
    assert "softmax ensemble of 3, 116" in str(texts(found["methods"].blocks[:1]))


def test_twice_the_epochs_are_not_the_same_cost(tmp_path):
    records = [
        record(cell(), logit=0.8, softmax={"logit": 0.7}),
        record(cell("softmax", epochs=200), logit=0.8),
    ]
    section = sections_of(tmp_path, *records)["paired"]
    [figure] = figures_of(section)
    notes = [row["note"] for row in figure.data["groups"][0]["rows"]]
    assert notes == ["minus softmax, 100; 1 split", "minus softmax of twice the epochs, 200; 1 split"]
    assert "No softmax of equal cost: cifar10, pmal 100 + 100." in section.lead


def test_an_ensemble_alone_is_a_ledger_and_counts_as_a_method(tmp_path):
    ledger = made_up(tmp_path, record(cell("softmax", epochs=116).together(3), logit=0.5))
    page = ledger_page(ledger.folder, pytest.fail)
    assert page.stats[1].note == "softmax ensemble of 3"


def test_a_method_without_a_softmax_beside_it_is_named(tmp_path):
    records = [
        record(cell("softmax"), logit=0.5),
        record(cell(split=0), logit=0.5),
        record(cell("cpn", split=2)),
    ]
    section = sections_of(tmp_path, *records)["paired"]
    assert "No softmax of the same epochs, split and seed: cifar10, cpn 100." in section.lead


def test_splits_that_some_methods_lack_are_named(tmp_path):
    records = [record(cell("softmax", split=s), logit=0.5) for s in (0, 1, 2)] + [
        record(cell(split=1), logit=0.5)
    ]
    lead = sections_of(tmp_path, *records)["methods"].lead
    assert lead.endswith("Splits that other rows of the same data have: cifar10, pmal 100 + 100: 0, 2.")
    more = [record(cell(method, split=1), logit=0.5) for method in ("cpn", "rpl", "arpl")]
    lead = sections_of(tmp_path, *records, *more)["methods"].lead
    assert lead.endswith("Splits that other rows of the same data have: cifar10, 4 rows: 0, 2.")


def curves(folder, records):
    section = sections_of(folder, *records)["curves"]
    return section, {panel["title"]: panel for f in figures_of(section) for panel in f.data["panels"]}


def series(panel, name):
    [found] = [one for one in panel["series"] if one["name"] == name]
    return found


def test_curves_have_a_panel_for_each_parameter_and_the_paper_dashed(tmp_path):
    section, panels = curves(tmp_path, grid_records(grids=("table5", "lambda")))
    assert list(panels) == ["T", "epsilon", "U", "margin", "lambda"]
    assert [[s["name"] for s in panel["series"]] for panel in panels.values()] == [
        ["AUROC distance", "AUROC probability", "AUROC logit", "ACC", "paper, AUROC"]
    ] * 5
    distance, paper = series(panels["epsilon"], "AUROC distance"), series(panels["epsilon"], "paper, AUROC")
    # 0.7 is the recipe's own, which every sweep has as one of its variants: the last one written is read
    assert distance["x"] == paper["x"] == panels["epsilon"]["ticks"] == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert distance["y"][:3] == pytest.approx([81.0, 81.6, 82.2])
    assert distance["high"][0] - distance["low"][0] == pytest.approx(2.0)
    assert paper["y"] == [value for _, value in sweep_figures("epsilon").values()]
    assert paper["dash"]
    assert "Not run" not in figures_of(section)[0].caption
    assert series(panels["lambda"], "paper, AUROC")["y"][-1] is None


def test_curves_of_other_data_have_no_figures_of_the_paper(tmp_path):
    _, panels = curves(tmp_path, grid_records("cifar10", grids=("table5",)))
    assert all(len(panel["series"]) == 4 for panel in panels.values())


def test_what_was_not_run_is_a_gap_and_is_said(tmp_path):
    records = [
        r
        for r in grid_records(grids=("table5",))
        if not {"ensemble.size=4", "optimization.margin=0.1"} & {*r["cell"]["settings"]}
    ]
    section, panels = curves(tmp_path, records)
    assert [y is None for y in series(panels["U"], "ACC")["y"]] == [False, False, True, False, False]
    caption = figures_of(section)[0].caption
    assert "Not run: U = 4; margin = 0.1; lambda, of which two values at least are needed." in caption


def test_only_splits_that_all_values_have_are_compared(tmp_path):
    records = [*grid_records(splits=(0,), grids=("lambda",))]
    records += [r for r in grid_records(splits=(2,), grids=("lambda",)) if r["grid"] is None]
    section, panels = curves(tmp_path / "a", records)
    assert series(panels["lambda"], "AUROC distance")["y"] == pytest.approx([80.0, 80.6, 81.2, 81.8])
    assert (
        "lambda: drawn from what all have, splits 0; seed 0; some have more."
        in figures_of(section)[0].caption
    )
    apart = [r for r in records if (r["cell"]["split"] == 2) == (r["grid"] is None)]
    section, _ = curves(tmp_path / "b", apart)
    assert (
        "lambda: no split and seed that all have, so the values do not compare."
        in figures_of(section)[0].caption
    )


def test_tables_3_and_4_are_dots_beside_the_papers(tmp_path):
    records = [
        r
        for r in grid_records(grids=("table3", "table4"))
        if "mining.quality=ensemble" not in r["cell"]["settings"]
    ]
    section = sections_of(tmp_path, *records)["ablations"]
    components, rules = figures_of(section)
    assert components.title.startswith("Table 3, components; tinyimagenet: oscri, strong, 100 + 100 epochs")
    names = [s["name"] for s in components.data["series"]]
    assert names == ["AUROC distance", "AUROC probability", "AUROC logit", "ACC", "paper, AUROC"]
    [group] = rules.data["groups"]
    assert [row["name"] for row in group["rows"]] == [v.label for v in GRIDS["table4"][0].variants]
    names = [s["name"] for s in rules.data["series"]]
    by_name = {row["name"]: dict(zip(names, row["dots"], strict=True)) for row in group["rows"]}
    missing = by_name["quality: deep ensembles"]
    assert missing["AUROC distance"] is None
    assert (missing["paper, AUROC"][0], missing["paper, ACC"][0]) == (80.5, 82.3)
    assert by_name["quality: probability"]["AUROC distance"] == pytest.approx([81.0, 80.0, 82.0])
    assert "Not run: quality: deep ensembles." in rules.caption
    only = sections_of(tmp_path / "one", *grid_records(grids=("table3",)))["ablations"]
    assert "Not run: Table 4, quality or diversity." in only.lead


def test_repeated_minings(tmp_path):
    section = sections_of(tmp_path, mining_record(0), mining_record(1), mining_record(0, family="neal"))[
        "minings"
    ]
    equal, apart, other, _ = figures_of(section)
    assert [row["dots"] for row in equal.data["groups"][0]["rows"]] == [
        [[25.0, None, None]],
        [[35.0, None, None]],
    ]
    assert apart.data["groups"][0]["rows"][0]["dots"] == [[0.125, None, None], [0.5, None, None]]
    assert "family=arpl" in equal.title
    assert "family=neal" in other.title


def test_a_file_that_cannot_be_read_is_told_of_and_left_out(tmp_path):
    ledger = made_up(tmp_path, record(cell("softmax"), logit=0.5))
    (tmp_path / "softmax" / "broken.json").write_text("{")
    said = []
    page = ledger_page(ledger.folder, said.append)
    [line] = said
    assert "broken.json" in line
    assert page.sections[-1].lead.endswith("1 file could not be read and is left out.")
    ledger.path(cell("softmax")).unlink()
    with pytest.raises(DataError, match=r"broken\.json"):
        ledger_page(ledger.folder, said.append)


def test_a_folder_without_cells_is_no_ledger(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="no ledger with cells"):
            ledger_page(folder, pytest.fail)


def test_names_are_text(tmp_path):
    evil = cell("softmax").about() | {"source": "<script>alert(1)</script>"}
    made_up(tmp_path, record(cell("softmax"), logit=0.5) | {"cell": evil})
    text = render_page(ledger_page(tmp_path, pytest.fail))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_the_page_is_written_beside_the_ledger_and_broken_files_are_told(tmp_path, capsys):
    made_up(tmp_path, *grid_records(splits=(0,), grids=("lambda",)))
    (tmp_path / "pmal" / "broken.json").write_text("[]")
    assert write_ledger_page(tmp_path) == tmp_path / "report.html"
    assert "broken.json" in capsys.readouterr().err
    assert "Hyper-parameters" in (tmp_path / "report.html").read_text()


def test_the_ledger_of_this_project_has_a_page(tmp_path, capsys):
    ledger = Path(__file__).parents[3] / "benchmarks" / "results"
    text = write_ledger_page(ledger, tmp_path / "page.html").read_text()
    assert capsys.readouterr().err == ""
    families = {result.cell.family for result in Ledger(ledger).results()[0]}
    assert all(f"family={family}" in text for family in families)
