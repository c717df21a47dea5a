"""The row of a prediction, from seconds that are given."""

import pytest
import torch

from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.speed import prediction
from pmal.speed.contestants import Case
from pmal.speed.prediction import PredictionPlan, measure_prediction
from pmal.speed.timing import Stopwatch

CASE = Case("small", 16, 8, steps=2, classes=3, channels=1)
ONE = {"model": [1.0, 1.0, 6.0], "near": [0.8], "network": [0.5], "reference": [4.0]}
MANY = {"model": [2.0], "near": [1.6], "network": [1.0], "reference": [3.0]}


def test_speeds_and_ratios_are_those_of_the_seconds(monkeypatch):
    asked = []

    def in_turns(works, watch, *, warmup, repeats, advance):
        asked.append(repeats)
        return {name: (ONE if len(asked) == 1 else MANY)[name] for name in works}

    monkeypatch.setattr(prediction, "in_turns", in_turns)
    plan = PredictionPlan(images=8, calls=5, repeats=2, reference_images=4, trial=2, seconds=1e6, bank=50)
    session = open_session(Resources(device="cpu"))
    [row] = measure_prediction(CASE, plan, Stopwatch.of(session.device), session)["prediction"]
    assert asked == [5, 2]
    assert (row["images"], row["calls"], row["precision"]) == (8, 5, "float32")
    assert (row["median_ms"], row["p99_ms"]) == (1000.0, 6000.0)
    assert (row["network_median_ms"], row["reference_median_ms"]) == (500.0, 4000.0)
    assert (row["images_per_s"], row["network_images_per_s"]) == (4.0, 8.0)
    assert row["reference_images_per_s"] == pytest.approx(4 / 3)  # of the few that it was asked for
    assert row["ratio"] == pytest.approx(3.0)
    assert row["latency_ratio"] == 4.0
    assert (row["near_median_ms"], row["near_images_per_s"]) == (800.0, 5.0)
    assert row["typicality_latency_cost"] == pytest.approx(0.25)  # 1 s with it, 0.8 s without
    assert row["typicality_cost"] == pytest.approx(0.25)


def test_only_the_model_that_is_timed_first_looks_at_its_layers():
    model = prediction.finished_model(CASE, bank=50, device=torch.device("cpu"))
    works = prediction._works(model, torch.zeros(2, 1, 16, 16, dtype=torch.uint8), lambda: None)
    assert works["model"]().far.isfinite().all()
    assert (works["near"]().far == -torch.inf).all()
