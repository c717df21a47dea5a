import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmal.reporting.tables import align, run_table


def estimate(value, low, high):
    return {"value": value, "low": low, "high": high}


METRICS = {
    "about": {
        "source": "cifar10",
        "split": "arpl/2",
        "known_classes": 6,
        "unknown_classes": 4,
        "method": "softmax",
        "encoder": "oscri",
        "epochs": 100,
        "augmentation": "strong",
        "seed": 7,
    },
    "accuracy": estimate(0.92344, 0.9151, 0.93),
    "calibration_error": 0.03,
    "known_images": 6000,
    "unknown_images": 4000,
    "scores": {
        "probability": {
            "auroc": estimate(0.8614, 0.85, 0.8719),
            "fpr95": estimate(0.5, 0.4, 0.6),
            "oscr": estimate(0.846, 0.83, 0.86),
            "aupr_in": estimate(0.11, 0.11, 0.11),
            "aupr_out": estimate(0.22, 0.22, 0.22),
        },
        "logit": {
            "auroc": estimate(1.0, 1.0, 1.0),
            "fpr95": estimate(0.0, 0.0, 0.0),
            "oscr": estimate(0.9, 0.8, 0.95),
            "aupr_in": estimate(0.33, 0.33, 0.33),
            "aupr_out": estimate(0.44, 0.44, 0.44),
        },
    },
}


def test_the_table_of_a_run():
    assert run_table(METRICS).splitlines() == [
        "cifar10 · split arpl/2 (6 known / 4 unknown classes) · softmax, oscri, 100 epochs, "
        "strong augmentation, seed 7",
        "ACC 92.3 [91.5, 93.0] on 6,000 known test images",
        "",
        "method   score        AUROC                 FPR95              OSCR",
        "softmax  probability  86.1 [85.0, 87.2]     50.0 [40.0, 60.0]  84.6 [83.0, 86.0]  family=arpl",
        "softmax  logit        100.0 [100.0, 100.0]  0.0 [0.0, 0.0]     90.0 [80.0, 95.0]  family=arpl",
        "4,000 unknown test images; percent [95 % interval]; FPR95: lower is better",
        "no threshold: no images were held out for it (too few, or data.held_out = 0)",
    ]


def test_what_the_threshold_did_is_said_in_one_line_and_what_it_promises_in_the_next():
    decision = {"score": "distance", "accept": 0.95, "known_accepted": 0.9512, "guaranteed": True}
    decision["note"] = "accepts at least 95 %"
    closed = METRICS | {"scores": {}, "unknown_images": 0, "decision": decision}
    known = "threshold of distance for 95 % of known images: accepts 95.1 % of those tested"
    assert run_table(closed).splitlines()[-2:] == [known, "accepts at least 95 %"]
    opened = METRICS | {"decision": decision | {"unknown_rejected": 0.7, "macro_f1": 0.8123}}
    assert f"{known}, rejects 70.0 % of the unknown ones; macro-F1 81.2\n" in run_table(opened)
    sure = METRICS | {"decision": decision | {"accept": 0.975}}
    assert run_table(sure).splitlines()[-2].startswith("threshold of distance for 97.5 % of known images: ")
    weak = METRICS | {"decision": decision | {"guaranteed": False, "note": "no guarantee: too few"}}
    assert run_table(weak).splitlines()[-1] == "no guarantee: too few"
    none = METRICS | {"decision": weak["decision"] | {"rejects": False}}
    assert (
        run_table(none)
        .splitlines()[-2]
        .endswith("none, so nothing is rejected; --accept takes a lower share")
    )


@pytest.mark.parametrize("family", ["neal", "random"])
def test_the_family_stands_beside_every_row(family):
    metrics = copy.deepcopy(METRICS)
    metrics["about"]["split"] = f"{family}/0"
    rows = [line for line in run_table(metrics).splitlines() if "family=" in line]
    assert len(rows) == 2
    assert all(row.endswith(f"family={family}") for row in rows)


def test_without_unknown_classes_there_are_no_open_set_figures():
    metrics = copy.deepcopy(METRICS) | {"scores": {}, "unknown_images": 0}
    text = run_table(metrics)
    assert "ACC 92.3" in text
    assert "no unknown classes in this split: no open-set figures" in text
    assert not any(word in text for word in ("AUROC", "OSCR", "FPR95"))


CELLS = st.text(
    st.characters(codec="ascii", exclude_characters=" \n\r\t\v\f\x1c\x1d\x1e\x1f\x85"), min_size=1
)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1)))
def test_columns_begin_at_the_same_place_and_nothing_is_lost(rows):
    lines = align(rows).split("\n")
    assert [line.split() for line in lines] == [list(row) for row in rows]
    start = 0
    for column in range(len(rows[0])):
        for line, row in zip(lines, rows, strict=True):
            assert line[start : start + len(row[column])] == row[column]
            assert column == 0 or line[start - 2 : start] == "  "
        start += max(len(row[column]) for row in rows) + 2


def test_empty_cells_leave_no_trailing_blanks():
    assert align([["a", ""], ["bb", "c"], ["", ""]]).split("\n") == ["a", "bb  c", ""]


def test_softmax_stands_beside_another_method_and_its_length_is_said():
    metrics = copy.deepcopy(METRICS)
    metrics["about"] |= {"method": "pmal", "optimization": {"init": "warm"}}
    metrics["softmax"] = {"accuracy": estimate(0.5, 0.4, 0.6), "scores": copy.deepcopy(METRICS["scores"])}
    lines = run_table(metrics).splitlines()
    assert [line.split()[0] for line in lines if "family=" in line] == ["pmal"] * 2 + ["softmax"] * 2
    assert lines[-2] == (
        "softmax: the first classifier of this run after 100 epochs, ACC 50.0 [40.0, 60.0]; "
        "pmal: 100 more from there"
    )
    metrics["about"]["passes"] = 346.9
    assert "\ncost in passes of every training image: pmal 347, softmax 100\n" in run_table(metrics)
    metrics["about"]["optimization"]["init"] = "scratch"
    assert "100 more from new weights\n" in run_table(metrics)
    metrics["about"] |= {"method": "proser"}
    del metrics["about"]["optimization"]  # settings of pmal alone
    assert "proser: 100 more from there\n" in run_table(metrics)
