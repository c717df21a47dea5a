from benchmarks.long_tail_tables import long_tail_table
from tests.benchmark.ledgers import made_up, record, tiny


def test_rows_are_those_of_a_long_tail(tmp_path):
    tail = ["data.long_tail=30"]
    made_up(
        tmp_path,
        record(tiny(epochs=12), 0.9, logit=0.5),
        record(tiny(epochs=12, settings=tail), 0.8, logit=0.75),
        record(tiny("pmal", epochs=12, settings=tail), 0.85, logit=0.7, distance=0.9) | {"score": "distance"},
    )
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in long_tail_table(tmp_path).splitlines()
    ]
    heads, _, pmal, softmax = lines
    assert dict(zip(heads, softmax, strict=True))["AUROC by its own score"] == "75.0"
    found = dict(zip(heads, pmal, strict=True))
    assert (found["largest : smallest class"], found["AUROC by its own score"], found["logit"]) == (
        "30",
        "90.0",
        "70.0",
    )
    assert found["ACC"] == "85.0"
