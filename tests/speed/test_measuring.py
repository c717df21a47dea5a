"""Timing by a clock of our own, what is counted against small sums by hand, and the command itself."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch

from pmal._engine.loop import COMPILE_SECONDS
from pmal._engine.steps import EagerStep
from pmal._runtime.session import open_session
from pmal.config import EncoderConfig, Resources
from pmal.ensemble.classifier import ClassifierSpec
from pmal.errors import UsageError
from pmal.speed import contestants
from pmal.speed import measuring as bench
from pmal.speed import training_rates as training
from pmal.speed.bench_text import bench_text
from pmal.speed.contestants import Case, Plan, plain_training, pmal_training, prototypes_of
from pmal.speed.measuring import CPU_QUICK, GPU, choose_sizes, run_bench
from pmal.speed.prediction import PredictionPlan, finished_model
from pmal.speed.reference import Pictures, ReferenceLoop, smooth_pictures
from pmal.speed.timing import Stopwatch, in_turns, spread
from pmal.speed.training_rates import measure_training

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TINY = Case("small", 16, 8, steps=2, classes=3, channels=1)


class FakeTime:
    """A clock that only work and waiting move on."""

    def __init__(self):
        self.now = 100.0
        self.pending = 0.0

    def watch(self):
        return Stopwatch(self.wait, lambda: self.now)

    def wait(self):
        self.now += self.pending
        self.pending = 0.0

    def work(self, *seconds, later=0.0):
        """Takes these seconds, call by call, the last for good; the device takes `later` ones on its own."""
        remaining = list(seconds)

        def run():
            self.now += remaining.pop(0) if len(remaining) > 1 else remaining[0]
            self.pending += later

        return run


def test_warm_up_does_not_count():
    time = FakeTime()
    works = {"compiles": time.work(60.0, 5.0, 1.0), "does not": time.work(2.0)}
    seconds = in_turns(works, time.watch(), warmup=2, repeats=3)
    assert seconds == {"compiles": [1.0, 1.0, 1.0], "does not": [2.0, 2.0, 2.0]}


def test_without_warm_up_the_first_turn_shows():
    """So that the test above can fail."""
    time = FakeTime()
    assert in_turns({"": time.work(60.0, 1.0)}, time.watch(), warmup=0, repeats=2) == {"": [60.0, 1.0]}


def test_what_the_device_still_does_counts_for_the_work_that_began_it():
    time = FakeTime()
    works = {"asynchronous": time.work(0.5, later=7.0), "next": time.work(1.0)}
    seconds = in_turns(works, time.watch(), warmup=0, repeats=2)
    assert seconds == {"asynchronous": [7.5, 7.5], "next": [1.0, 1.0]}


def test_contestants_take_turns():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    reported = []
    in_turns(works, Stopwatch(lambda: None), warmup=1, repeats=2, advance=reported.append)
    assert calls == ["a", "b"] * 3
    assert sum(reported) == 6


def test_turns_of_equal_length_have_no_spread():
    assert spread([4.0, 4.0]) == 0.0


@pytest.mark.parametrize("side", [16, 96])  # an array, and a JPEG
def test_the_reference_makes_tensors_as_torchvision_does(side):
    pixels = smooth_pictures(3, side, 3)
    image, label = Pictures(pixels, [0, 1, 2, 3, 4], train=False)[4]
    assert label == 4
    assert image.shape == (3, side, side)
    assert image.dtype == torch.float32
    expected = (torch.from_numpy(pixels[4 % 3]).permute(2, 0, 1) / 255 - 0.5) / 0.25
    assert torch.allclose(image, expected, atol=1e-6 if side == 16 else 0.3)


@pytest.mark.parametrize(("side", "channels"), [(16, 1), (96, 3)])
def test_the_reference_learns_and_answers(side, channels):
    torch.manual_seed(0)
    spec = ClassifierSpec(EncoderConfig("small"), ("dark", "bright"), side, channels)
    pixels = np.stack([np.full((side, side, channels), value, np.uint8) for value in (40, 200)])
    loop = ReferenceLoop(spec, pixels, [0, 1] * 8, batch_size=8, device=CPU)
    for group in loop.optimizer.param_groups:
        group["lr"] = 0.05
    epoch = loop.trainer()
    for _ in range(6):
        epoch()
    assert loop.losses[-1] < loop.losses[0]
    assert len(loop.losses) == 12
    probability, label = loop.tester()()
    assert label.tolist() == [0.0, 1.0] * 8
    assert loop.answerer()() == (0, pytest.approx(float(probability[0]), abs=1e-5))


def test_prototypes_are_images_of_their_class():
    labels = torch.tensor(TINY.labels())
    prototypes = prototypes_of(TINY)
    assert torch.equal(labels[prototypes.ids], prototypes.labels)
    assert prototypes.table().shape == (3, 5)


def test_a_turn_is_an_epoch_of_the_loop_of_fit(monkeypatch):
    session, plan = open_session(Resources(device="cpu")), Plan()
    seen = []
    real = EagerStep.__call__
    monkeypatch.setattr(
        EagerStep,
        "__call__",
        lambda self, images, labels: seen.append(images.shape) or real(self, images, labels),
    )
    plain = plain_training(TINY, TINY.pictures(), plan, session)
    plain.epoch()
    assert seen == [(8, 1, 16, 16)] * 2
    assert plain.images == 16
    joint = pmal_training(TINY, TINY.pictures(), plan, session)
    joint.epoch()
    assert len(seen) == 4
    assert joint.prototypes == 15
    assert joint.images == 16 + 2 * 15


def test_long_plans_are_worth_compiling_and_short_ones_are_not():
    long = Plan(long=True)
    steps, fastest = TINY.steps * contestants._epochs(TINY, long), 1e-4
    assert (steps - long.turns * TINY.steps) * fastest >= COMPILE_SECONDS
    assert TINY.steps * contestants._epochs(TINY, Plan(long=False)) * fastest < COMPILE_SECONDS


def test_the_model_answers_by_its_prototypes():
    model = finished_model(TINY, bank=50, device=CPU)
    answers = model.answer(torch.from_numpy(TINY.pictures()).permute(0, 3, 1, 2))
    assert len(answers.labels) == 16
    assert bool((answers.score >= 0).all())


def test_slow_models_are_asked_less():
    plan = PredictionPlan(images=1000, calls=500, repeats=2, seconds=2.0)
    assert plan.fitted(0.001, 0.001) == plan
    slow = plan.fitted(0.5, 0.01)
    assert (slow.calls, slow.images) == (4, 200)
    assert plan.fitted(60.0, 60.0) == dataclasses.replace(plan, calls=3, images=1)


def test_encoders_by_name():
    assert [case.encoder for case in choose_sizes(torch.device("cuda"), [], False).cases] == [
        case.encoder for case in GPU.cases
    ]
    [own, other] = choose_sizes(CPU, ["small", "resnet18"], True).cases
    assert (own.image_size, own.channels) == (28, 1)
    assert (other.encoder, other.image_size, other.channels) == ("resnet18", 32, 3)
    with pytest.raises(UsageError, match="oscri"):
        choose_sizes(CPU, ["oscry"], True)


def test_a_part_that_fails_leaves_the_others(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("out of luck\nand more")

    monkeypatch.setattr(bench, "measure_prediction", fail)
    monkeypatch.setattr(bench, "measure_training", lambda *arguments: {"training": ["a row"]})
    monkeypatch.setattr(bench, "_load", lambda: 1e6)
    ticks = itertools.count()
    watch = Stopwatch(lambda: None, lambda: float(next(ticks)))  # every work takes a second
    sizes = dataclasses.replace(CPU_QUICK, mining=((100, 4),))
    found = run_bench(sizes, open_session(Resources(device="cpu")), watch)
    assert [(row["k"], row["gpairs_per_s"]) for row in found["mining"]] == [(4, 1e-5)]
    assert found["training"] == ["a row"]
    assert found["notes"] == [
        "others used the processor (load 1000000.0): only the ratios hold",
        "prediction small: out of luck",
    ]


def test_a_batch_too_large_is_halved(monkeypatch):
    real, tried = training._measure, []

    def measure(plan, watch, session, case):
        tried.append(case.batch_size)
        if case.batch_size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(plan, watch, session, case)

    monkeypatch.setattr(training, "_measure", measure)
    case = dataclasses.replace(TINY, batch_size=16)
    found = measure_training(case, Plan(repeats=1), Stopwatch.of(CPU), open_session(Resources(device="cpu")))
    assert tried == [16, 8, 4]
    [row] = found["training"]
    assert row["batch_size"] == 4
    assert row["ratio"] == pytest.approx(row["images_per_s"] / row["reference_images_per_s"])
    assert found["notes"][0] == "small: a batch of 16 does not fit into memory"


BENCH = ("bench", "--device", "cpu")


def test_the_command(call):
    code, output, error = call(*BENCH, "--quick", "--json")
    assert code == 0, error
    found = json.loads(output)
    for kind in ("training", "prediction"):
        assert found[kind]
        assert all(row["ratio"] > 0 for row in found[kind])
    assert all(row["gpairs_per_s"] > 0 for row in found["mining"])
    assert found["pmal_step"][0]["cost_per_image"] > 0
    assert found["prediction"][0]["median_ms"] <= found["prediction"][0]["p99_ms"]
    assert found["manifest"]["libraries"]["torch"]
    assert all("others used the processor" in note for note in found["notes"])
    text = bench_text(found)
    for word in ("Training", "PMAL step", "Mining", "Prediction", "times reference", "small 28 px"):
        assert word in text
    assert "GiB" not in text  # no column without a figure


def test_an_unknown_encoder_is_one_line(call):
    code, _, error = call(*BENCH, "--encoder", "oscry")
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
