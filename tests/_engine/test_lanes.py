"""Trainings side by side: each ends as it would alone, whatever happens to it or to the others."""

import dataclasses
import math
import os
import signal
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pmal._engine import loop as training
from pmal._engine.lanes import Lane, take_turns
from pmal._engine.loop import Training, TrainingSet, train_together
from pmal._engine.steps import GraphStep
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors
from pmal.config import Resources, TrainingConfig
from pmal.data.feeding.augmentation import augment
from pmal.data.feeding.batches import ResidentImages
from pmal.encoders import create_encoder
from pmal.errors import Interrupted, PmalError

CPU = torch.device("cpu")
CONFIG = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.05, ema=0.9, precision="float32")


class Killed(BaseException):
    """Stands for a process that is gone."""


class Bench(NamedTuple):
    """A training set, and what was logged and shown."""

    data: TrainingSet
    log: list
    shown: list

    def session(self, checkpoint_seconds=1e9):
        display = Silent()
        stage = display.stage
        display.stage = lambda *about: self.shown.append(about) or stage(*about)
        resources = Resources(checkpoint_seconds=checkpoint_seconds)
        return Session(CPU, resources, display).logging_to(lambda **event: self.log.append(event))


@pytest.fixture
def bench():
    images = torch.randint(0, 256, (70, 1, 4, 4), dtype=torch.uint8)
    labels = (images.float().mean(dim=(1, 2, 3)) > 127).long()
    return Bench(TrainingSet(ResidentImages(images, CPU), labels, np.arange(70)), [], [])


def prepare(index, folder, hook=lambda step: None):
    """Dropout, so that every step draws; `hook` is called before each."""
    torch.manual_seed(index)
    layers = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2)
    model, steps = nn.Sequential(*layers), iter(range(10**6))

    def objective(images, labels):
        hook(next(steps))
        return cross_entropy(model(images.flatten(1) / 255), labels)

    return Training(f"classifier {index}", model, objective, 100 + index, folder / str(index))


def alone(bench, folder, indices=(0, 1, 2)):
    networks = [prepare(index, folder / "alone") for index in indices]
    for network in networks:
        train_together(network.name, [network], bench.data, CONFIG, bench.session())
    bench.log.clear()
    bench.shown.clear()
    return networks


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_each_ends_with_the_bits_it_has_alone(bench, tmp_path):
    expected = alone(bench, tmp_path)
    together = [prepare(index, tmp_path) for index in range(3)]
    torch.manual_seed(9)
    train_together("classifiers 0, 1, 2", together, bench.data, CONFIG, bench.session())
    assert torch.initial_seed() == 9
    assert_same(together, expected)
    assert bench.shown == [("classifiers 0, 1, 2", 3 * 4 * 64, "images", 0)]
    assert [(event["stage"], event["epoch"]) for event in bench.log] == [
        (f"classifier {index}", epoch) for epoch in range(1, 5) for index in range(3)
    ]
    assert all(event["beside"] == 2 for event in bench.log)


def test_alone_nothing_is_beside(bench, tmp_path):
    train_together("net", [prepare(0, tmp_path)], bench.data, CONFIG, bench.session())
    assert all("beside" not in event for event in bench.log)


@pytest.mark.parametrize("again", ["together", "alone"])
def test_killed_together_it_goes_on_together_or_alone(bench, tmp_path, again):
    expected = alone(bench, tmp_path, (0, 1))

    def die(step):
        if step == 6:
            raise Killed

    killed = [prepare(0, tmp_path), prepare(1, tmp_path, die)]
    with pytest.raises(Killed):
        train_together("both", killed, bench.data, CONFIG, bench.session(checkpoint_seconds=0))
    steps = [load_tensors(tmp_path / str(index) / "checkpoint")[1]["step"] for index in range(2)]
    assert steps == [6, 6]
    resumed = [prepare(index, tmp_path) for index in range(2)]
    for group in [resumed] if again == "together" else [[network] for network in resumed]:
        train_together("again", group, bench.data, CONFIG, bench.session())
    assert_same(resumed, expected)


def test_a_signal_saves_all_and_one_that_is_further_ends_first(bench, tmp_path):
    expected = alone(bench, tmp_path, (0, 1))

    def interrupt(step):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="classifier 0 is saved at step 6 of 16; run"):
        train_together("0", [prepare(0, tmp_path, interrupt)], bench.data, CONFIG, bench.session())
    stopped = [prepare(0, tmp_path), prepare(1, tmp_path, interrupt)]
    message = "classifier 0 is saved at step 12 of 16, classifier 1 is saved at step 6 of 16"
    with pytest.raises(Interrupted, match=message):
        train_together("both", stopped, bench.data, CONFIG, bench.session())
    resumed = [prepare(index, tmp_path) for index in range(2)]
    train_together("both", resumed, bench.data, CONFIG, bench.session())
    assert bench.shown[-1] == ("both", 2 * 4 * 64, "images", 18 * 16)
    assert_same(resumed, expected)


def test_a_bad_loss_of_one_leaves_the_checkpoints_of_all(bench, tmp_path):
    def spoil(step):
        if step == 5:
            broken[1].model[4].bias.data.fill_(float("nan"))

    broken = [prepare(0, tmp_path), prepare(1, tmp_path, spoil)]
    with pytest.raises(PmalError, match="classifier 1: loss is nan at step 5"):
        train_together("both", broken, bench.data, CONFIG, bench.session(checkpoint_seconds=0))
    assert all(has_tensors(tmp_path / str(index) / "checkpoint") for index in range(2))


def drawn(seeds, count):
    """Random numbers of lanes that take turns."""

    def draw(values):
        for _ in range(count):
            values.append(torch.rand(3))
            yield

    found = [[] for _ in seeds]
    lanes = [Lane(seed, CPU, beside=len(seeds) > 1) for seed in seeds]
    assert len(list(take_turns(list(zip(lanes, map(draw, found), strict=True))))) == count * len(seeds)
    return [torch.cat(values) for values in found]


def test_random_numbers_of_a_lane_do_not_depend_on_other_lanes():
    torch.manual_seed(9)
    first, second = drawn([1, 2], 4)
    assert torch.equal(first, drawn([1], 4)[0])
    assert not torch.equal(first, second)
    ours = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(first, torch.cat([torch.rand(3) for _ in range(4)]))
    torch.manual_seed(9)
    assert torch.equal(ours, torch.rand(3))  # the caller's go on as if nothing had been


def gpu_data(gpu, count=64 * 10):
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    return TrainingSet(ResidentImages(images, gpu), torch.arange(count, device=gpu) % 6, np.arange(count))


def gpu_training(index, folder, gpu, policy="strong"):
    """With the random numbers of augmentation and of OSCRI's dropout."""
    torch.manual_seed(index)
    model = nn.Sequential(create_encoder("oscri"), nn.Linear(128, 6)).to(gpu)
    mean, std = torch.full((2, 3), 0.5, device=gpu)

    def objective(images, labels):
        return cross_entropy(model(augment(images, policy, mean, std, True)), labels)

    return Training(f"classifier {index}", model, objective, 100 + index, folder / str(index))


def gpu_session(gpu, log=None):
    session = Session(gpu, Resources(checkpoint_seconds=1e9), Silent())
    return session if log is None else session.logging_to(lambda **event: log.append(event))


def assert_close(found, expected):
    """But for the order of sums, which changes on a GPU; other random numbers would be far off."""
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.01)


GPU_CONFIG = TrainingConfig(epochs=2, batch_size=64, learning_rate=0.01, precision="float32")


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.model.parameters()])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("variant", ["eager", "captured", "compiled"])
def test_on_a_gpu_each_ends_with_the_weights_it_has_alone(tmp_path, monkeypatch, variant):
    monkeypatch.setattr(training, "COMPILE_SECONDS", 0 if variant == "compiled" else math.inf)
    if variant == "eager":
        monkeypatch.setattr(training._Loop, "choose_step", lambda loop, *_: loop.make_step(loop.objective))
    gpu = torch.device("cuda")
    data, results = gpu_data(gpu), []
    for name, groups in (("alone", [[0], [1]]), ("together", [[0, 1]])):
        log, networks = [], [gpu_training(index, tmp_path / name, gpu) for index in range(2)]
        for group in groups:
            chosen = [networks[index] for index in group]
            train_together(name, chosen, data, GPU_CONFIG, gpu_session(gpu, log))
        losses = {(event["stage"], event["epoch"]): event["loss"] for event in log}
        results.append((networks, losses))
    (expected, expected_losses), (found, losses) = results
    assert losses == pytest.approx(expected_losses, rel=0.01)
    assert_close(found, expected)
    # The same batches with other random numbers lead further away: the comparison can fail.
    monkeypatch.setattr(training._Loop, "random_stream", lambda loop: 7)
    other = gpu_training(0, tmp_path / "other", gpu)
    train_together("other", [other], data, GPU_CONFIG, gpu_session(gpu))
    far = (weights(other) - weights(expected[0])).norm()
    assert (weights(found[0]) - weights(expected[0])).norm() < 0.3 * far


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_stopped_together_they_go_on(tmp_path, monkeypatch):
    gpu = torch.device("cuda")
    data, run_step = gpu_data(gpu), training._Loop.run_step
    whole = [gpu_training(index, tmp_path / "whole", gpu) for index in range(2)]
    train_together("whole", whole, data, GPU_CONFIG, gpu_session(gpu))

    def interrupt(loop, *batch):
        run_step(loop, *batch)
        if loop.name == "classifier 1" and loop.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(training._Loop, "run_step", interrupt)
    stopped = [gpu_training(index, tmp_path, gpu) for index in range(2)]
    with pytest.raises(Interrupted, match="classifier 1 is saved at step 9 of 20"):
        train_together("stopped", stopped, data, GPU_CONFIG, gpu_session(gpu))
    monkeypatch.setattr(training._Loop, "run_step", run_step)
    resumed = [gpu_training(index, tmp_path, gpu) for index in range(2)]
    train_together("resumed", resumed, data, GPU_CONFIG, gpu_session(gpu))
    assert_close(resumed, whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_what_cannot_be_captured_trains_all_the_same(tmp_path):
    gpu, said = torch.device("cuda"), []
    session = gpu_session(gpu)
    session.display.say = said.append
    networks = [gpu_training(index, tmp_path, gpu) for index in range(2)]

    def waiting(objective):
        return lambda images, labels: objective(images, labels) * float(labels.sum() * 0 + 1)

    waits = [dataclasses.replace(t, objective=waiting(t.objective)) for t in networks]
    train_together("waiting", waits, gpu_data(gpu), GPU_CONFIG, session)
    assert [line.partition(":")[0] for line in said] == ["classifier 0", "classifier 1"]
    assert all(torch.isfinite(weights(network)).all() for network in networks)


class Draw:
    """In the place of a step: random numbers, so many that those of two lanes run at the same time."""

    average = None

    def __init__(self, gpu):
        self.total = torch.zeros(1 << 20, device=gpu)
        self.optimizer = torch.optim.SGD([torch.zeros(1, device=gpu)])

    def __call__(self, images, labels):
        self.total += torch.rand_like(self.total) - torch.rand_like(self.total)
        return self.total.sum()


def totals(seeds, gpu, replays=200):
    """What graphs of lanes that take turns have drawn."""
    nothing = torch.zeros(1, device=gpu)
    draws = [Draw(gpu) for _ in seeds]
    lanes = [Lane(seed, gpu, beside=len(seeds) > 1) for seed in seeds]

    def replay(draw):
        graph = GraphStep(draw, nn.Identity(), nothing, nothing)
        draw.total.zero_()
        for _ in range(replays):
            yield graph(nothing, nothing)

    for _ in take_turns(list(zip(lanes, map(replay, draws), strict=True))):
        pass
    for lane in lanes:
        lane.join()
    return [draw.total.clone() for draw in draws]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_of_two_lanes_draw_each_their_own_numbers():
    gpu = torch.device("cuda")
    first, second = totals([1, 2], gpu)
    assert torch.equal(first, totals([1], gpu)[0])
    assert torch.equal(second, totals([2], gpu)[0])
    assert not torch.equal(first, second)
