"""Tables from made-up records: what is averaged, what is not, and what stands beside it."""

import csv
import io
from dataclasses import replace

import pytest

from pmal.benchmark.cells.cell import FLUCTUATION, make_cell
from pmal.benchmark.rendering import Beside, as_data, render
from pmal.benchmark.tables.method_tables import ledger_tables, methods_tables, paired_tables, paper_tables
from pmal.benchmark.tables.paper import method_tables, sweep_figures
from pmal.benchmark.tables.statistics import Difference
from tests.benchmark.ledgers import made_up, record


def cell(method="pmal", source="cifar10", family="arpl", split=0, seed=0, epochs=100, settings=(), **words):
    words = {"recipe": "strong", "epochs": epochs, "settings": settings} | words
    return make_cell(method, source, family, split, seed, **words)


def tables_of(folder, *records):
    return ledger_tables(made_up(folder, *records))[0]


def column(table, head):
    return [row[table.heads.index(head)] for row in table.rows]


def test_mean_and_deviation_over_splits(tmp_path):
    [table] = tables_of(
        tmp_path,
        record(cell("softmax", split=0), 0.90, logit=0.80),
        record(cell("softmax", split=2), 0.94, logit=0.84),
    )
    assert table.caption == "Methods; family=arpl"
    [accuracy], [logit] = column(table, "ACC"), column(table, "AUROC logit")
    assert (accuracy.value, accuracy.cells) == (pytest.approx(92.0), 2)
    assert accuracy.deviation == pytest.approx(8**0.5)
    assert logit.value == pytest.approx(82.0)
    assert column(table, "AUROC distance") == [None]
    assert "| cifar10, 0, 2; seed 0 | oscri, strong | softmax, 100 | 100 | 2 | 92.0 ± 2.8 |" in render(
        [table], "markdown"
    )


def test_what_differs_is_never_averaged(tmp_path):
    cells = [
        cell("softmax"),
        cell("softmax", epochs=50),
        cell("softmax", recipe="standard"),
        cell("softmax", encoder="resnet18"),
        cell("softmax", settings=["encoder.projection=linear"]),
        cell("pmal"),
    ]
    [table, *_] = tables_of(tmp_path, *(record(one, logit=0.5) for one in cells))
    assert column(table, "n") == ["1"] * len(cells)


def test_families_have_tables_of_their_own(tmp_path):
    found = tables_of(tmp_path, *(record(cell("softmax", family=f), logit=0.5) for f in ("arpl", "neal")))
    assert [table.family for table in found] == ["arpl", "neal"]
    assert all("family=" in table.caption for table in found)
    paper = paper_tables(made_up(tmp_path))[0]
    assert [t.family for t in paper if t.title == "Table 1, AUROC"] == ["arpl", "neal"]
    assert all("family=" in line for line in render(paper, "markdown").splitlines() if line.startswith("**"))


@pytest.mark.parametrize(
    ("source", "splits", "told"),
    [
        ("cifar10", (0, 1, 2), True),
        ("cifar10", (0, 2, 4), False),
        ("cifar10", (1,), False),
        ("mnist", (0, 1, 2), False),
    ],
)
def test_equal_splits_among_those_averaged_are_told_of(tmp_path, source, splits, told):
    [table] = tables_of(tmp_path, *(record(cell("softmax", source, split=s), logit=0.5) for s in splits))
    assert any("splits 0 and 1 have the same known classes" in note for note in table.notes) == told


def test_a_softmax_of_as_many_passes_is_called_so(tmp_path):
    cells = [cell("pmal"), *(cell("softmax", epochs=n) for n in (100, 200, 346, 347))]
    cells.append(cell("softmax", epochs=116).together(3))
    table = tables_of(tmp_path, *(record(one, logit=0.5) for one in cells))[0]
    found = dict(zip(column(table, "method, epochs"), column(table, "passes"), strict=True))
    assert found == {
        "pmal, 100 + 100": "347",
        "softmax, 100": "100",
        "softmax, 200": "200",
        "softmax, 346": "346",
        "softmax of equal cost, 347": "347",
        "softmax ensemble of 3, 116": "348",
    }
    assert table.heads.index("passes") == table.heads.index("method, epochs") + 1
    assert len({row[1] for row in table.rows}) == 1  # the number of classifiers is no setting of the recipe


def test_what_is_not_known_to_cost_anything_has_no_passes(tmp_path):
    silent = record(cell("softmax"), logit=0.5)
    del silent["about"]
    assert column(tables_of(tmp_path, silent)[0], "passes") == [None]


def test_a_second_training_of_another_length(tmp_path):
    longer = cell(settings=["optimization.epochs=300", "optimization.weight=2"])
    equal = cell("softmax", epochs=641)
    table, paired = tables_of(
        tmp_path, record(cell()), record(longer), record(equal), record(cell("softmax"))
    )
    rows = [row[1:4] for row in table.rows if row[2].startswith("pmal")]
    assert rows == [
        ("oscri, strong", "pmal, 100 + 100", "347"),
        ("oscri, strong, optimization.weight=2", "pmal, 100 + 300", "641"),
    ]
    assert "softmax of equal cost, 641" in column(table, "method, epochs")
    assert [row[2:4] for row in paired.rows] == [
        ("pmal, 100 + 100", "softmax, 100"),
        ("pmal, 100 + 300", "softmax, 100"),
        ("pmal, 100 + 300", "softmax of equal cost, 641"),
    ]


def test_second_trainings_of_two_lengths_are_never_averaged(tmp_path):
    found = [record(cell(settings=[f"optimization.epochs={n}"], split=n % 2), logit=0.5) for n in (151, 300)]
    assert column(tables_of(tmp_path, *found)[0], "method, epochs") == ["pmal, 100 + 151", "pmal, 100 + 300"]


def test_a_softmax_as_long_as_a_method_with_one_training_is_just_a_softmax(tmp_path):
    table = tables_of(tmp_path, *(record(cell(method), logit=0.5) for method in ("cpn", "softmax")))[0]
    assert column(table, "method, epochs") == ["cpn, 100", "softmax, 100"]


def test_groups_stand_in_the_order_of_their_epochs(tmp_path):
    table = tables_of(tmp_path, *(record(cell("softmax", epochs=n), logit=0.5) for n in (1000, 50, 200)))[0]
    assert column(table, "method, epochs") == ["softmax, 50", "softmax, 200", "softmax, 1000"]


def test_each_method_is_compared_by_its_own_score(tmp_path):
    first = {"logit": 0.7, "probability": 0.2}
    pmal = record(cell(), logit=0.4, probability=0.3, distance=0.9, softmax=first) | {"score": "distance"}
    cpn = record(cell("cpn"), logit=0.6) | {"score": "logit"}
    softmax = record(cell("softmax"), logit=0.8, probability=0.1) | {"score": "logit"}
    [table] = paired_tables(made_up(tmp_path, pmal, cpn, softmax).results()[0])
    minus = [(row[2].partition(",")[0], row[3]) for row in table.rows]
    assert minus == [("cpn", "softmax, 100"), ("pmal", "softmax, 100")]
    own = [entry.value for entry in column(table, "AUROC, each by its own score")]
    assert own == pytest.approx([-20.0, 20.0])


def test_seeds_are_compared_with_the_same_seed(tmp_path):
    figures = {"pmal": (0.9, 0.7, 0.1), "softmax": (0.8, 0.5)}  # the third seed has no partner
    records = [
        record(cell(method, seed=seed), logit=value)
        for method, values in figures.items()
        for seed, value in enumerate(values)
    ]
    [table] = paired_tables(made_up(tmp_path, *records).results()[0])
    assert column(table, "AUROC logit")[0].value == pytest.approx(15.0)
    assert column(table, "data, splits") == ["cifar10, 0; seed 0, 1"]


def test_a_score_of_a_methods_own_has_a_column(tmp_path):
    found = [
        record(cell("softmax", split=split), logit=0.5, weibull=value) | {"score": "weibull"}
        for split, value in ((0, 0.75), (2, 0.77))
    ]
    [table] = tables_of(tmp_path, *found)
    assert column(table, "AUROC own score") == ["weibull 76.0 ± 1.4"]


def test_paired_differences(tmp_path):
    records = []
    for split, gain in ((0, 0.01), (2, 0.02), (4, 0.06)):
        base = 0.8 + 0.05 * split  # differs more between splits than any method does
        weights = ["optimization.weight=2"]
        records += [
            record(
                cell("pmal", split=split, settings=weights), logit=base + gain, softmax={"logit": base - 0.01}
            ),
            record(cell("softmax", split=split, epochs=200), logit=base),
        ]
    [table] = paired_tables(made_up(tmp_path, *records).results()[0])
    assert column(table, "minus") == ["softmax, 100", "softmax of twice the epochs, 200"]
    own, long = column(table, "AUROC logit")
    assert own.value == pytest.approx(4.0)
    assert long == Difference(pytest.approx(3.0), pytest.approx(1.0), pytest.approx(6.0), 3)
    assert "+3.0 [+1.0, +6.0]" in render([table], "terminal")


def test_the_first_classifiers_of_a_longer_run_stand_for_a_softmax_as_long(tmp_path):
    longer = record(cell(epochs=200), logit=0.95, softmax={"logit": 0.92})
    short = record(cell(), logit=0.9, softmax={"logit": 0.85})
    _, table = tables_of(tmp_path, longer, short)
    found = dict(zip(column(table, "minus"), column(table, "AUROC logit"), strict=True))
    assert found["softmax of twice the epochs, 200"].value == pytest.approx(-2.0)
    own = record(cell("softmax", epochs=200), logit=0.89)  # a record of its own comes first
    _, table = tables_of(tmp_path, longer, short, own)
    found = dict(zip(column(table, "minus"), column(table, "AUROC logit"), strict=True))
    assert found["softmax of twice the epochs, 200"].value == pytest.approx(1.0)


def test_pmal_is_compared_with_everything_of_its_cost(tmp_path):
    """A softmax of twice the epochs costs less, and is left out where there is one of equal cost."""
    pmal = record(cell(), 0.9, logit=0.90, distance=0.95, softmax={"logit": 0.80}) | {"score": "distance"}
    others = {cell("softmax", epochs=200): 0.99, cell("softmax", epochs=347): 0.86}
    others |= {cell("softmax", epochs=n).together(3): value for n, value in ((116, 0.88), (117, 0.99))}
    records = [record(one, 0.9, logit=value) for one, value in others.items()]
    records.append(record(cell("softmax", epochs=116, settings=["data.limit=9"]).together(3), logit=0.99))
    _, table = tables_of(tmp_path, pmal, *records)
    assert column(table, "minus") == [
        "softmax, 100",
        "softmax of equal cost, 347",
        "softmax ensemble of 3, 116",
    ]
    assert {row[2] for row in table.rows} == {"pmal, 100 + 100"}
    logit, own = column(table, "AUROC logit"), column(table, "AUROC, each by its own score")
    assert [entry.value for entry in logit] == pytest.approx([10.0, 4.0, 2.0])
    assert [entry.value for entry in own] == pytest.approx([15.0, 9.0, 7.0])


def test_a_method_that_trains_twice_without_prototypes_costs_both_trainings(tmp_path):
    """And the mixtures of the second one, which go through half of the network."""
    found = [record(one, logit=0.5) for one in (cell("proser"), cell("softmax", epochs=250))]
    methods, table = tables_of(tmp_path, *found)
    assert column(table, "minus") == ["softmax of equal cost, 250"]
    # Among the methods it would look like that of PMAL; the passes say the same.
    assert column(methods, "method, epochs") == ["proser, 100 + 100", "softmax, 250"]
    assert column(methods, "passes") == ["250", "250"]


def test_settings_that_softmax_has_too_are_the_same_in_what_costs_as_much(tmp_path):
    linear = ["encoder.projection=linear"]
    found = [record(cell(settings=[*linear, "optimization.weight=2"]), 0.9, logit=0.9)]
    found += [
        record(cell("softmax", epochs=347, settings=s), 0.9, logit=v) for s, v in ((linear, 0.7), ([], 0.1))
    ]
    _, table = tables_of(tmp_path, *found)
    [difference] = column(table, "AUROC logit")
    assert difference.value == pytest.approx(20.0)


def test_the_paper_has_no_ensembles(tmp_path):
    ledger = made_up(tmp_path, record(cell("softmax", epochs=116).together(3), logit=0.5))
    tables, broken = paper_tables(ledger)
    assert broken == []
    assert not any("ensemble of" in str(entry) for table in tables for row in table.rows for entry in row)


def test_differences_of_two_splits_have_no_interval(tmp_path):
    records = [record(cell(m, split=s), 0.9, logit=0.5) for m in ("pmal", "softmax") for s in (0, 2)]
    [table] = paired_tables(
        made_up(tmp_path, *records, record(cell("pmal", split=4), logit=0.1)).results()[0]
    )
    assert column(table, "n") == ["2"]
    assert column(table, "data, splits") == ["cifar10, 0, 2; seed 0"]
    assert "+0.0 |" in render([table], "markdown")
    assert "[" not in render([table], "markdown").split("Mean of")[0].replace("[95", "")
    assert "Fewer than 3 splits: no interval" in table.notes[0]


def test_the_paper_beside_ours(tmp_path):
    ledger = made_up(
        tmp_path,
        record(cell("pmal", source="tinyimagenet"), 0.873, distance=0.839, logit=0.853),
        record(cell("softmax", source="tinyimagenet", epochs=200), 0.865, probability=0.83, logit=0.838),
    )
    accuracy, auroc = (t for t in paper_tables(ledger)[0] if t.number == 1)
    rows = {(row[0], row[1].partition(";")[0]): row for row in auroc.rows}
    pmal = rows["PMAL-OSCRI", "pmal, oscri, strong, 100 + 100"][-1]
    assert (pmal.ours.value, pmal.paper.value) == (pytest.approx(83.9), 81.8)
    assert pmal.difference == pytest.approx(2.1)
    softmax = rows["SoftMax", "softmax, oscri, strong, 200"][-1]
    assert softmax.ours.value == pytest.approx(83.0)  # by probability, as in the paper
    assert rows["PMAL-WRN", ""][-1] == Beside(None, method_tables()[1]["PMAL-WRN"]["AUROC", "tinyimagenet"])
    assert column(accuracy, "tinyimagenet")[0].paper is None  # the paper has none
    text = render([auroc], "markdown")
    assert "83.9 (n=1), paper 81.8: +2.1" in text
    assert "| CPN |  | paper 99.0 |" in text


def test_a_figure_of_the_paper_without_one_of_ours_stands_once(tmp_path):
    ours = [record(cell(source="tinyimagenet", epochs=n), distance=0.8) for n in (100, 50)]
    [auroc] = [t for t in paper_tables(made_up(tmp_path, *ours))[0] if t.title == "Table 1, AUROC"]
    rows = [row for row in auroc.rows if row[0] == "PMAL-OSCRI"]
    shown = {
        name: [row[auroc.heads.index(name)].paper is not None for row in rows]
        for name in ("cifar10", "tinyimagenet")
    }
    assert shown == {"cifar10": [True, False], "tinyimagenet": [True, True]}


def test_an_empty_ledger_shows_the_paper_alone(tmp_path):
    found, broken = paper_tables(made_up(tmp_path))
    assert broken == []
    assert {table.number for table in found} == {1, 2, 3, 4, 5, None}
    figures = [entry for table in found for row in table.rows for entry in row if isinstance(entry, Beside)]
    assert all(figure.ours is None for figure in figures)
    # 120 and 30 of the tables of methods less 13 and 4 dashes; 6; 2 x 6; 4 x 5; and 3 of lambda
    assert sum(figure.paper is not None for figure in figures) == 107 + 26 + 6 + 12 + 20 + 3
    assert ledger_tables(made_up(tmp_path)) == ([], [])
    assert render([], "markdown")


def test_csv_has_every_figure_by_itself(tmp_path):
    found = [record(cell("softmax", split=s), 0.9 + s / 100, logit=0.8) for s in (0, 1)]
    [table] = methods_tables(made_up(tmp_path, *found).results()[0])
    [row] = csv.DictReader(io.StringIO(render([table], "csv")))
    assert row["family"] == "arpl"
    assert (float(row["ACC"]), float(row["ACC deviation"]), row["ACC cells"]) == (90.5, 0.7071, "2")
    assert row["AUROC distance"] == ""


def test_data_has_every_figure_by_its_parts(tmp_path):
    ledger = made_up(tmp_path, *[record(cell(source="cifar10", split=s), distance=0.9) for s in (0, 1)])
    [first, *_] = as_data(methods_tables(ledger.results()[0]))
    assert first["family"] == "arpl"
    assert first["rows"][0]["AUROC distance"] == {"value": 90.0, "deviation": 0.0, "cells": 2, "splits": 2}
    [compared] = [table for table in as_data(paper_tables(ledger)[0]) if table["title"] == "Table 1, AUROC"]
    [figure] = [row["cifar10"] for row in compared["rows"] if (row["cifar10"] or {}).get("ours")]
    assert figure["paper"]["value"] == 94.6
    assert figure["difference"] == pytest.approx(90.0 - 94.6)


def test_ablations_gather_what_differs_in_their_settings_alone(tmp_path):
    words = {"source": "tinyimagenet"}
    base = ["optimization.weight=2"]
    records = [
        record(cell(**words, settings=base), distance=0.80),
        record(cell(**words, settings=[*base, "mining.per_class=5"]), distance=0.70, grid="table5"),
        record(cell(**words, settings=[*base, "mining.per_class=5"], split=1), distance=0.72),
        record(cell(**words, settings=[*base, "mining.epsilon=0.1"]), distance=0.60),
        record(cell(**words, settings=["mining.per_class=30"]), distance=0.50),
        record(cell("softmax", **words), logit=0.5),
    ]
    tables = {
        t.title.split(", ")[1]: t for t in paper_tables(made_up(tmp_path, *records))[0] if t.number == 5
    }
    per_class = column(tables["T"], "AUROC distance")
    assert [figure.ours and pytest.approx(figure.ours.value) for figure in per_class] == [
        None,
        71.0,
        80.0,
        None,
        None,
    ]
    assert [figure.paper.value for figure in per_class] == [79.9, 81.1, 83.1, 82.6, 83.1]
    assert tables["T"].family == "arpl"
    assert "optimization.weight=2, 100 + 100 epochs" in tables["T"].title
    epsilon = column(tables["epsilon"], "AUROC distance")
    assert [figure.ours is not None for figure in epsilon] == [True, False, False, True, False]
    assert "nothing was run" in tables["U"].family


def test_variations_of_an_ablation_are_not_among_the_methods(tmp_path):
    varied = record(cell(settings=["mining.per_class=5"]), distance=0.5, grid="table5")
    assert tables_of(tmp_path, varied) == []


def test_a_variation_that_was_also_asked_for_by_itself_counts_among_the_methods(tmp_path):
    """The cell of split 0 was there already, from an ablation."""
    varied, plain = (cell(settings=["mining.per_class=5"], split=split) for split in (0, 2))
    [table] = tables_of(tmp_path, record(varied, distance=0.5, grid="table5"), record(plain, distance=0.6))
    assert column(table, "data, splits") == ["cifar10, 0, 2; seed 0"]
    assert column(table, "AUROC distance")[0].value == pytest.approx(55.0)


def test_fluctuation(tmp_path):
    one = replace(cell(settings=["ensemble.size=6"]), measure=FLUCTUATION)
    figures = {"minings": 3, "share_equal": 0.25, "distance_to_nearest": 0.125, "distance_by_chance": 0.5}
    found = [
        t for t in paper_tables(made_up(tmp_path, {"cell": one.about(), **figures}))[0] if t.number is None
    ]
    assert found[-1].rows[0][-4:] == ("3", "25.0 %", "0.125", "0.500")


@pytest.mark.parametrize(
    ("sweep", "label", "figures"),
    [
        ("components", "(f) quality, diversity, point-to-set", (None, 83.1)),
        ("components", "(b) diversity", (None, 78.1)),
        ("quality or diversity", "quality: MC dropout", (81.6, 78.8)),
        ("U", "5", (None, 83.0)),
        ("lambda", "0.8", (None, 82.8)),
        ("margin", "1", (None, 80.5)),
    ],
)
def test_figures_of_the_paper(sweep, label, figures):
    assert sweep_figures(sweep)[label] == figures


def test_every_variant_of_the_paper_has_its_figure():
    from pmal.benchmark.ablations import GRIDS

    for grid in ("table3", "table4", "table5"):
        for sweep in GRIDS[grid]:
            assert {variant.label for variant in sweep.variants} == set(sweep_figures(sweep.name))
