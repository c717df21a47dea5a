"""The row of a mining, from seconds that are given."""

import pytest

from benchmarks.speed import mining
from benchmarks.speed.limits import Limits
from benchmarks.speed.mining import compare_mining
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.speed.timing import Stopwatch


def test_figures_are_those_of_the_seconds_and_the_best_reference_counts(monkeypatch):
    taken = {"exact": [1.0, 2.0, 9.0], "cdist 128": [8.0], "cdist 512": [3.0, 4.0, 5.0], "cdist 2048": [16.0]}
    monkeypatch.setattr(
        mining, "in_turns", lambda works, watch, **words: {name: taken[name] for name in works}
    )
    session = open_session(Resources(device="cpu"))
    limits = Limits({"float32": 1e6, "bfloat16": 1e12}, 1e10)
    [row] = compare_mining(50, 4, 3, limits, Stopwatch(lambda: None), session)["mining"]
    pairs, flops = 50 * 50, 4 * 4 * 50 * 50  # two products of two spaces, for each class and pair
    assert (row["n"], row["k"], row["precision"]) == (50, 4, "exact")
    assert row["gpairs_per_s"] == pytest.approx(pairs / 2.0 / 1e9)
    assert row["reference_gpairs_per_s"] == pytest.approx(pairs / 4.0 / 1e9)
    assert row["ratio"] == pytest.approx(2.0)
    assert row["spread"] == pytest.approx(4.0)
    assert row["tflops"] == pytest.approx(flops / 2.0 / 1e12)
    assert row["share_of_peak"] == pytest.approx(flops / 2.0 / 1e6)
