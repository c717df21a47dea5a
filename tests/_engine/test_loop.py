"""The loop on a tiny network with everything that has state: batch norm, dropout, momentum, averaging."""

import contextlib
import dataclasses
import gc
import json
import os
import signal
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pmal._engine import loop as training
from pmal._engine.loop import Training, TrainingSet, finish, train_together
from pmal._engine.optimizers import learning_rate
from pmal._runtime.processes.ranks import Ranks
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal._runtime.signals import deferred_signals
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.config import Resources, TrainingConfig
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import SampleDataset
from pmal.data.feeding.batches import ResidentImages, StreamedImages
from pmal.data.samples import ArrayStore, Samples
from pmal.errors import DataError, Interrupted, PmalError

CPU = torch.device("cpu")
CONFIG = TrainingConfig(epochs=4, batch_size=16, learning_rate=0.05, warmup_epochs=1, precision="float32")


def make_session(checkpoint_seconds=1e9, log=None):
    session = Session(CPU, Resources(checkpoint_seconds=checkpoint_seconds), Silent())
    return session if log is None else session.logging_to(lambda **event: log.append(event))


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (70, 1, 4, 4), dtype=torch.uint8, generator=generator)
    labels = (images.float().mean(dim=(1, 2, 3)) > 127).long()
    return TrainingSet(ResidentImages(images, CPU), labels, 1000 + np.arange(70))


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2))


def objective_of(model, before_step=None):
    steps = 0

    def objective(images, labels):
        nonlocal steps
        if before_step:
            before_step(steps)
        steps += 1
        return cross_entropy(model(images.flatten(1) / 255), labels)

    return objective


def train(model, objective, data, folder, session, config=CONFIG, seed=5):
    train_together("net", [Training("net", model, objective, seed, folder)], data, config, session)


def loop_of(objective, data, folder, session):
    return training._Loop(Training("net", make_model(), objective, 5, folder), data, CONFIG, session)


def run(data, folder, config=CONFIG, before_step=None, model=None, **session):
    model = model or make_model()
    objective = objective_of(model, before_step)
    train(model, objective, data, folder, make_session(**session), config)
    return model


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


class Killed(BaseException):
    """Stands for a process that is gone: nothing of ours runs after it."""


def die_at(step):
    def hook(now):
        if now == step:
            raise Killed

    return hook


CONFIGS = {
    "sgd": CONFIG,
    "adam": dataclasses.replace(
        CONFIG, optimizer="adam", learning_rate=0.01, schedule="steps", step_epochs=2
    ),
    "ema": dataclasses.replace(CONFIG, ema=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("step", [0, 1, 3, 4, 9, 15])
def test_killed_at_any_step_ends_with_the_same_bits(data, tmp_path, config, step):
    whole = run(data, tmp_path / "whole", config)
    with pytest.raises(Killed):
        run(data, tmp_path / "killed", config, die_at(step), checkpoint_seconds=0)
    assert has_tensors(tmp_path / "killed" / "checkpoint") == (step > 0)
    assert same(run(data, tmp_path / "killed", config), whole)


def test_streamed_and_killed_it_ends_with_the_same_bits_as_from_memory(data, tmp_path):
    whole = run(data, tmp_path / "whole")
    pixels = data.images.images.permute(0, 2, 3, 1).numpy()
    samples = Samples.whole(ArrayStore("x", pixels), data.labels.numpy(), ("dark", "bright"))

    def streamed(workers):
        images = StreamedImages(SampleDataset(samples, ImageShape(4, 1)), CPU, workers)
        return dataclasses.replace(data, images=images)

    with pytest.raises(Killed):
        run(streamed(2), tmp_path / "killed", before_step=die_at(6), checkpoint_seconds=0)
    assert same(run(streamed(1), tmp_path / "killed"), whole)


def test_a_checkpoint_is_not_the_start(data, tmp_path):
    """The test above would pass if resuming began again from nothing: here it is seen to go on."""
    with pytest.raises(Killed):
        run(data, tmp_path, before_step=die_at(9), checkpoint_seconds=0)
    log = []
    run(data, tmp_path, log=log)
    assert log[0] == {"stage": "net", "resumed_at_step": 9}
    assert [event["epoch"] for event in log[1:]] == [3, 4]


def test_the_logged_loss_does_not_depend_on_interruptions(data, tmp_path):
    whole, resumed = [], []
    run(data, tmp_path / "whole", log=whole)
    with pytest.raises(Killed):
        run(data, tmp_path / "killed", before_step=die_at(6), checkpoint_seconds=0)
    run(data, tmp_path / "killed", log=resumed)
    assert [event["loss"] for event in resumed[1:]] == [event["loss"] for event in whole[1:]]


def test_an_epoch_is_logged_with_its_mean_loss_and_the_rate_of_its_last_step(data, tmp_path):
    log, losses, model = [], [], make_model()

    def objective(images, labels):
        loss = cross_entropy(model(images.flatten(1) / 255), labels)
        losses.append(float(loss.detach()))
        return loss

    train(model, objective, data, tmp_path, make_session(log=log))
    for number, event in enumerate(log):
        assert event["epoch"] == number + 1
        assert event["loss"] == pytest.approx(np.mean(losses[4 * number : 4 * number + 4]))
        assert event["rate"] == learning_rate(4 * number + 3, 4, CONFIG)


def test_with_averaging_the_trained_network_is_the_average(data, tmp_path):
    """Of the weights after every step of the same training without it, which the average does not touch."""
    model, after = make_model(), []
    run(data, tmp_path / "plain", model=model, before_step=lambda step: after.append(weights_of(model)))
    expected, *rest = [*after, weights_of(model)]
    for t, weights in enumerate(rest, 1):
        decay = min(0.9, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * weights
    averaged = weights_of(run(data, tmp_path / "averaged", CONFIGS["ema"]))
    torch.testing.assert_close(averaged, expected)
    assert not torch.allclose(averaged, rest[-1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_resumes(data, tmp_path, number, code):
    whole = run(data, tmp_path / "whole")

    def hook(step):
        if step == 6:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="net is saved at step 7 of 16") as caught:
        run(data, tmp_path / "stopped", before_step=hook)
    assert caught.value.exit_code == code
    assert same(run(data, tmp_path / "stopped"), whole)


def test_a_bad_loss_stops_before_the_update_and_names_step_and_samples(data, tmp_path):
    model = make_model()
    seen = {}

    def hook(step):
        if step == 5:
            with torch.no_grad():
                model[4].bias.fill_(float("nan"))
            seen.update({k: v.clone() for k, v in model.state_dict().items()})

    with pytest.raises(
        PmalError, match=r"net: loss is nan at step 5 \(sample ids 1\d\d\d, .*training\.learning_rate"
    ):
        run(data, tmp_path, before_step=hook, model=model, checkpoint_seconds=0)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in seen.items() if k.endswith("weight"))
    tensors, about = load_tensors(tmp_path / "checkpoint")
    assert about["step"] == 5
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())


def test_an_update_that_breaks_the_weights_after_the_last_loss_is_told(data, tmp_path):
    config = dataclasses.replace(CONFIG, epochs=1, batch_size=64, learning_rate=1e30, weight_decay=1e30)
    with pytest.raises(PmalError, match="net: weights are infinite or NaN after the last"):
        run(data, tmp_path, config)


def test_a_late_look_at_the_losses_names_the_right_step(data, tmp_path):
    """On a GPU the losses are looked at every few steps only: the report must not be off by the delay."""
    loop = loop_of(None, data, tmp_path, make_session())
    for step, loss in enumerate([0.5, 0.4, float("inf"), 0.2]):
        loop.unchecked.append((torch.tensor([step, 60 + step]), torch.tensor(loss)))
    loop.step = 14
    with pytest.raises(PmalError, match=r"loss is inf at step 12 \(sample ids 1002, 1062\)"):
        loop.save()
    assert not has_tensors(tmp_path / "checkpoint")


@pytest.mark.parametrize("others_fail", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_is_captured_by_all_processes_or_by_none(data, tmp_path, monkeypatch, fails, others_fail):
    class Others(Ranks):
        def largest(self, number):
            return max(number, others_fail)

    class Captured:
        def __init__(self, *_):
            if fails:
                raise RuntimeError("cannot wait")

        def seconds(self, *_):
            assert not others_fail, "exchanges in it would wait for the others for ever"
            return 0.0

    said = []
    display = Silent()
    display.say = said.append
    session = Session(CPU, Resources(), display, ranks=Others())
    loop = loop_of(None, data, tmp_path, session)
    loop.device = torch.device("cuda")
    monkeypatch.setattr(training, "GraphStep", Captured)
    assert isinstance(loop.choose_step(None, None), Captured) == (not fails and not others_fail)
    reason = "cannot wait" if fails else "another process cannot"
    assert said == [f"net: cannot be captured ({reason}); slower steps"] * (fails or others_fail)


def test_a_second_signal_while_a_step_is_captured_is_no_fault_of_the_step(data, tmp_path, monkeypatch):
    loop = loop_of(None, data, tmp_path, make_session())
    loop.device = torch.device("cuda")
    monkeypatch.setattr(training, "GraphStep", lambda *_: signal.raise_signal(signal.SIGINT))
    with deferred_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted, match="twice"):
            loop.choose_step(None, None)


def test_a_step_that_the_compiler_fails_at_is_captured_as_it_is_written(data, tmp_path, monkeypatch):
    tried = []

    class Captured:
        def __init__(self, step, *_):
            tried.append(step.objective)
            assert step.objective != "compiled", "expected stride 16==1"  # as generated code says it

        def seconds(self, *_):
            return 0.0

    said, display = [], Silent()
    display.say = said.append
    session = Session(CPU, Resources(), display)
    loop = loop_of("plain", data, tmp_path, session)
    loop.device = torch.device("cuda")
    monkeypatch.setattr(training, "COMPILE_SECONDS", 0)
    monkeypatch.setattr(training, "compiled", lambda objective: "compiled")
    monkeypatch.setattr(training, "GraphStep", Captured)
    assert isinstance(loop.choose_step(None, None), Captured)
    assert tried == ["plain", "compiled", "plain"]
    assert [line.startswith("net: cannot be compiled (expected stride 16==1") for line in said] == [True]


@pytest.mark.parametrize(("steps_done", "expected"), [(0, "compiled"), (5, "compiled"), (6, "plain")])
def test_a_step_is_compiled_where_the_rest_of_the_training_takes_long(
    data, tmp_path, monkeypatch, steps_done, expected
):
    class Captured:
        def __init__(self, step, *_):
            self.objective = step.objective

        def seconds(self, *_):
            return training.COMPILE_SECONDS / 11

    monkeypatch.setattr(training, "compiled", lambda objective: "compiled")
    monkeypatch.setattr(training, "GraphStep", Captured)
    loop = loop_of("plain", data, tmp_path, make_session())
    loop.device, loop.step = torch.device("cuda"), steps_done  # of 16
    assert loop.choose_step(None, None).objective == expected


def test_a_step_is_compiled_by_all_processes_or_by_none(data, tmp_path, monkeypatch):
    class Others(Ranks):
        """They ask in the same order, and have no compiler."""

        answers = (0, 0, 1)

        def largest(self, number):
            first, *self.answers = self.answers
            return max(number, first)

    monkeypatch.setattr(training, "COMPILE_SECONDS", 0)
    monkeypatch.setattr(training, "compiled", lambda objective: "compiled")
    monkeypatch.setattr(
        training, "GraphStep", lambda step, *_: types.SimpleNamespace(of=step, seconds=lambda *_: 0.0)
    )
    session = Session(CPU, Resources(), Silent(), ranks=Others())
    loop = loop_of("plain", data, tmp_path, session)
    loop.device = torch.device("cuda")
    assert loop.choose_step(None, None).of.objective == "plain"


def test_an_interrupted_training_lets_go_of_its_images(data, tmp_path):
    """Workers that decode them end then; the garbage collector would come for them late."""
    run(data, tmp_path / "first")  # torch's first optimizer keeps who asked for it
    data = dataclasses.replace(data, images=ResidentImages(data.images.images, CPU))
    left = weakref.ref(data.images)
    gc.disable()
    try:
        with contextlib.suppress(Interrupted):
            run(data, tmp_path / "second", before_step=lambda step: os.kill(os.getpid(), signal.SIGINT))
        del data
        assert left() is None
    finally:
        gc.enable()


def test_workers_that_a_signal_to_the_group_ended_are_no_accident(data, tmp_path):
    class Dying(ResidentImages):
        def stream(self, plan):
            os.kill(os.getpid(), signal.SIGTERM)
            raise PmalError("a process that decodes images died")
            yield

    dying = dataclasses.replace(data, images=Dying(data.images.images, CPU))
    with pytest.raises(Interrupted, match="the last checkpoint stays") as caught:
        run(dying, tmp_path)
    assert caught.value.exit_code == 143


def test_every_sample_is_seen_at_most_once_an_epoch(data, tmp_path):
    seen = []
    model = make_model()

    def objective(images, labels):
        seen.append(images.clone())
        return cross_entropy(model(images.flatten(1) / 255), labels)

    train(model, objective, data, tmp_path, make_session())
    assert len(seen) == 16
    epochs = [torch.cat(seen[i : i + 4]).flatten(1) for i in range(0, 16, 4)]
    assert all(len(torch.unique(epoch, dim=0)) == 64 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_training_learns(data, tmp_path):
    log = []
    model = run(data, tmp_path, dataclasses.replace(CONFIG, epochs=40), log=log)
    assert log[-1]["loss"] < 0.6 * log[0]["loss"]
    assert not model.training


def test_seeds_differ_and_the_callers_randomness_is_untouched(data, tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    first = make_model()
    torch.manual_seed(3)
    train(first, objective_of(first), data, tmp_path / "a", make_session(), seed=1)
    assert torch.equal(torch.rand(2), expected)
    second = make_model()
    train(second, objective_of(second), data, tmp_path / "b", make_session(), seed=2)
    assert not same(first, second)


def test_a_checkpoint_of_another_training_is_refused(data, tmp_path):
    with pytest.raises(Killed):
        run(data, tmp_path, before_step=die_at(3), checkpoint_seconds=0)
    with pytest.raises(DataError, match="belongs to a training of 16 steps, not 20: delete it"):
        run(data, tmp_path, dataclasses.replace(CONFIG, epochs=5))


def test_a_checkpoint_of_other_data_is_refused(data, tmp_path):
    with pytest.raises(Killed):
        run(data, tmp_path, before_step=die_at(3), checkpoint_seconds=0)
    other = TrainingSet(data.images, 1 - data.labels, data.ids)
    with pytest.raises(DataError, match="belongs to other training data"):
        run(other, tmp_path)


def test_a_checkpoint_of_another_network_is_refused(data, tmp_path):
    with pytest.raises(Killed):
        run(data, tmp_path, before_step=die_at(3), checkpoint_seconds=0)
    tensors, about = load_tensors(tmp_path / "checkpoint")
    renamed = {name.replace("model.0.weight", "model.0.other"): value for name, value in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_tensors(tmp_path / "checkpoint", renamed, about)
    with pytest.raises(DataError, match=r"^[^\n]*belongs to another network: delete it to start again$"):
        run(data, tmp_path)


def test_an_epoch_that_ends_with_the_checkpoint_is_logged_once_and_right(data, tmp_path):
    whole, log = [], []
    run(data, tmp_path / "whole", log=whole)

    def hook(step):
        if step == 7:  # the last step of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(data, tmp_path / "stopped", before_step=hook, log=log)
    run(data, tmp_path / "stopped", log=log)
    assert [(e["epoch"], e["loss"]) for e in log if "epoch" in e] == [(e["epoch"], e["loss"]) for e in whole]


def test_finish_leaves_nothing(data, tmp_path):
    run(data, tmp_path, checkpoint_seconds=0)
    assert json.loads((tmp_path / "checkpoint.json").read_text())["about"]["step"] == 16
    finish(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_result_belongs_to_the_pixels_it_was_trained_on(data):
    changed = data.images.images.clone()
    changed[3, 0, 0, 0] ^= 1
    other = TrainingSet(ResidentImages(changed, CPU), data.labels, data.ids)
    same_again = TrainingSet(ResidentImages(data.images.images.clone(), CPU), data.labels, data.ids)
    assert other.digest != data.digest == same_again.digest


def test_the_speed_of_an_epoch_is_that_of_steps_that_are_done(data, tmp_path, monkeypatch):
    """A GPU has steps before it when the host has handed out the last one."""
    now, log, check_losses = 0.0, [], training._Loop.check_losses

    def wait(loop):
        nonlocal now
        now += 8.0
        check_losses(loop)

    monkeypatch.setattr(training, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(training._Loop, "check_losses", wait)
    run(data, tmp_path, log=log)
    assert [event["images_per_s"] for event in log if "epoch" in event] == [64 / 8] * CONFIG.epochs
