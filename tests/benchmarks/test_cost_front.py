from dataclasses import replace

import pytest

from benchmarks.cost_front import common_splits, comparisons, cost_table, front_panels
from pmal.benchmark.cells.cell import make_cell
from tests.benchmark.ledgers import made_up, record


def cell(method, split, epochs=100):
    return make_cell(method, "cifar10", "arpl", split, 0, recipe="strong", epochs=epochs)


def results(folder):
    figures = {("softmax", 100): 0.90, ("softmax", 347): 0.92, ("arpl", 100): 0.905, ("pmal", 100): 0.91}
    rows = [
        record(cell(method, split, epochs), logit=value + split / 1000, **own)
        for (method, epochs), value in figures.items()
        for split in (0, 2)
        for own in ([{"distance": 0.95}] if method == "pmal" else [{}])
    ]
    rows.append(record(cell("softmax", 4), logit=0.1))  # a split that no other row has
    rows.append(record(cell("cpn", 4), logit=0.9))  # no split of the others
    gone = replace(cell("softmax", 0, 600), recipe="mine@12345678").about()  # nobody knows its passes
    rows.append(record(cell("softmax", 0, 600), logit=0.99) | {"cell": gone})
    return made_up(folder, *rows).results()[0]


def test_rows_are_compared_on_the_splits_that_most_have_and_the_front_is_what_nothing_beats(tmp_path):
    [one] = comparisons(results(tmp_path))
    assert (one.source, one.splits) == ("cifar10", (0, 2))
    assert {row.key.method for row in one.rows} == {"softmax", "arpl", "pmal"}
    assert [(row.key.method, round(row.passes)) for row in one.front("logit")] == [
        ("arpl", 100),
        ("softmax", 347),
    ]
    # PMAL costs as much as the long softmax: ahead by its own score, and behind by the logit.
    assert [(row.key.method, row.key.epochs) for row in one.front(None)][-1] == ("pmal", 100)
    first, second = front_panels(results(tmp_path))
    assert first["title"] == "cifar10, each by its own score"
    by_name = {series["name"]: series for series in second["series"]}
    assert by_name["softmax"]["x"] == [100.0, 347.0]
    assert by_name["softmax"]["y"] == [pytest.approx(90.1), pytest.approx(92.1)]
    assert by_name["front"]["x"] == [100.0, 347.0]


def test_splits():
    assert common_splits([{0, 2, 4}, {0, 2, 4}, {0, 1, 2, 3, 4}, {0}]) == {0, 2, 4}
    assert common_splits([{0}, {0}, {0}, {0, 1, 2}]) == {0}
    assert common_splits([{0}, {1}]) in ({0}, {1})


def test_the_table_has_costs_beside_every_row(tmp_path):
    lines = cost_table().splitlines()
    heads = [head.strip() for head in lines[0].split("|")[1:-1]]
    assert heads[2:6] == ["passes", "seconds", "GPU GiB", "beside"]
    cifar10 = [line.split("|")[1:-1] for line in lines if line.startswith("| cifar10, arpl")]
    assert len(cifar10) > 10
    assert all(cell.strip() for row in cifar10 for cell in row[2:5])
