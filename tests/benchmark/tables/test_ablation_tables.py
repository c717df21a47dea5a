"""Which results stand in a table of the paper's ablations, and in which column."""

from dataclasses import replace

import pytest

from pmal.benchmark.cells.cell import FLUCTUATION, make_cell
from pmal.benchmark.tables.ablation_tables import ablation_tables, fluctuation_table
from tests.benchmark.ledgers import made_up, mining_record, record


def weights(recipe="strong", source="tinyimagenet", method="pmal"):
    """Two variants of lambda, with a figure of its own in every column."""
    for i, weight in enumerate(("0.5", "1")):
        settings = [f"optimization.weight={weight}"]
        cell = make_cell("pmal", source, "arpl", 0, 0, recipe=recipe, epochs=100, settings=settings)
        cell = replace(cell, method=method)
        figures = {"distance": 0.6 + i / 100, "probability": 0.7 + i / 100, "logit": 0.8 + i / 100}
        yield record(cell, 0.5 + i / 100, grid="lambda", **figures)


def tables_of(folder, *records):
    results, broken = made_up(folder, *records).results()
    assert broken == []
    return [table for table in ablation_tables(results) if "lambda" in table.title]


def values(row):
    label, _, accuracy, distance, probability, logit = row
    return label, *(round(m.value, 6) for m in (accuracy.ours, distance.ours, probability, logit))


def test_each_score_stands_under_its_name(tmp_path):
    [table] = tables_of(tmp_path, *weights())
    assert table.heads[2:] == ("ACC", "AUROC distance", "AUROC probability", "AUROC logit")
    found = [values(row) for row in table.rows if row[4] is not None]
    assert found == [("0.5", 50.0, 60.0, 70.0, 80.0), ("1", 51.0, 61.0, 71.0, 81.0)]


@pytest.mark.parametrize(("source", "printed"), [("tinyimagenet", True), ("cifar10", False)])
def test_the_paper_s_figures_stand_beside_its_own_data_alone(tmp_path, source, printed):
    [table] = tables_of(tmp_path, *weights(source=source))
    assert any(entry.paper for row in table.rows for entry in row[2:4]) == printed


def test_other_methods_are_no_variants(tmp_path):
    [table] = tables_of(tmp_path, *weights(method="softmax"))
    assert table.family == "none, nothing was run"


def test_a_recipe_of_one_s_own_that_is_gone_has_its_table(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[training]\nepochs = 3\n")
    records = list(weights(recipe=str(recipe)))
    recipe.unlink()
    [table] = tables_of(tmp_path / "ledger", *records)
    assert "mine@" in table.title
    assert len([row for row in table.rows if row[4] is not None]) == 2


def test_minings_of_each_family_have_a_table(tmp_path):
    records = [mining_record(split, family=family) for family in ("arpl", "neal") for split in (0, 1)]
    results, _ = made_up(tmp_path, *records[:3]).results(FLUCTUATION)
    tables = fluctuation_table(results)
    assert [(table.family, len(table.rows)) for table in tables] == [("arpl", 2), ("neal", 1)]
    assert [row[4:] for row in tables[0].rows] == [("25.0 %", "0.125", "0.500"), ("35.0 %", "0.125", "0.500")]
