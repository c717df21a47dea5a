"""The training loop of every network: resumable at any step, stopped before a bad loss does harm."""

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pmal._engine.batch_norm import average_statistics, synchronize
from pmal._engine.lanes import Lane, take_turns
from pmal._engine.optimizers import WeightAverage, learning_rate, make_optimizer, set_rate
from pmal._engine.steps import EagerStep, GraphStep, Objective, Step, compiled
from pmal._runtime.devices import convolutions, describe_kernels
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.seeds import random_state, restore_random_state, stream
from pmal._runtime.session import Session
from pmal._runtime.signals import StopRequest, deferred_signals
from pmal._runtime.tensors import delete_tensors, has_tensors, load_tensors, save_tensors
from pmal.config import TrainingConfig
from pmal.data.feeding.batches import ImageBatches, epoch_plan, steps_in_epoch
from pmal.data.feeding.parts import Part
from pmal.data.feeding.workers import worker_died
from pmal.errors import DataError, PmalError, UsageError, first_line

COMPILE_SECONDS = 90.0
"""Trainings that would take longer without are compiled: that takes 20 s for a small network and 70 s for
ResNet-50, less where a run before has left its kernels, and gains a third of every step or more."""
LOSS_CHECK_STEPS = 100
"""How often the losses of a GPU are looked at: each look makes the host wait for it."""
STOP_CHECK_STEPS = {"cpu": 1, "cuda": 10}
"""How often the processes tell each other whether one of them was asked to stop."""


@dataclass(frozen=True)
class TrainingSet:
    """Images, labels and ids, by position."""

    images: ImageBatches
    labels: torch.Tensor
    ids: np.ndarray[Any, np.dtype[np.int64]]

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the samples and their names: a result belongs to them alone."""
        names = self.ids.tobytes() + self.labels.cpu().numpy().tobytes()
        return hashlib.sha256(names + self.images.fingerprint().encode()).hexdigest()


def training_set(train: Part, session: Session) -> TrainingSet:
    data, ranks = TrainingSet(train.images, train.labels(session.device), train.samples.ids), session.ranks
    own = data.digest  # by all at the same time
    if ranks.by_first(lambda: own) != own:
        raise DataError(f"process {ranks.rank} reads other training images than process 0: copy them again")
    return data


def check_batch_size(config: TrainingConfig, ranks: Ranks) -> None:
    """Refuse a batch of which the processes would have unequal shares."""
    size, count = config.batch_size, ranks.size
    if size % count:
        fix = f"choose {size // count * count or count} or {(size // count + 1) * count}"
        raise UsageError(f"training.batch_size = {size} cannot be divided by {count} processes: {fix}")


@dataclass(frozen=True)
class Training:
    """A network to be trained in place, and the folder of its checkpoint."""

    name: str
    model: nn.Module
    objective: Objective
    seed: int
    folder: Path


def train_together(
    title: str, trainings: Sequence[Training], data: TrainingSet, config: TrainingConfig, session: Session
) -> None:
    """Train networks in place. Several take turns step by step; on a GPU they run side by side.

    A training whose folder has a checkpoint resumes from it; on the CPU, to the same bits. SIGINT and SIGTERM
    end all after the step at hand, with checkpoints and `Interrupted`. Several processes share every batch,
    and end with the same weights. Each network ends with the weights that it would have alone, and may go on
    alone from its checkpoint; several of them need resident images and a single process.
    """
    ranks = session.ranks
    check_batch_size(config, ranks)
    if config.sync_batch_norm:
        for training in trainings:
            synchronize(training.model, ranks)
    beside = len(trainings) - 1
    loops = [_Loop(training, data, config, session, beside) for training in trainings]
    with convolutions(benchmark=session.device.type == "cuda"), deferred_signals(ranks.size > 1) as stop:
        try:
            for loop in loops:
                loop.begin()
            total = sum(loop.config.epochs * loop.images_per_epoch for loop in loops)
            done = sum(loop.step * loop.batch_size for loop in loops)
            with session.display.stage(title, total, "images", done) as advance:
                _run(loops, stop, advance)
            for loop in loops:
                loop.end()
        finally:
            for loop in loops:
                loop.lane.join()
                loop.take_step = None  # it refers to the loop, and with that workers would outlive a training


def _run(loops: Sequence["_Loop"], stop: StopRequest, advance: Callable[[int], None]) -> None:
    try:
        for index in take_turns([(loop.lane, loop.steps()) for loop in loops]):
            advance(loops[index].batch_size)
            if loops[index].may_stop:
                _stop_if_asked(loops, stop)
    except (RuntimeError, PmalError) as error:
        # Workers that a signal to the whole process group has ended with us are no accident.
        stop.check("the last checkpoint stays")
        raise worker_died(error) from None


def _stop_if_asked(loops: Sequence["_Loop"], stop: StopRequest) -> None:
    """Stop all processes after the same step if any of them got a signal."""
    ranks = loops[0].ranks
    number = ranks.largest(stop.signal_number or 0)
    if number:
        stop.signal_number = number
        for loop in loops:
            with loop.lane.turn():
                ranks.by_first(loop.save)
        stop.check(
            ", ".join(f"{loop.name} is saved at step {loop.step} of {loop.total_steps}" for loop in loops)
        )


def finish(folder: Path, ranks: Ranks = ALONE) -> None:
    """Drop the checkpoint, once the result of the training is safe elsewhere."""
    delete_tensors(folder / "checkpoint", ranks)


class _Loop:
    """The state between two steps, and its checkpoint."""

    def __init__(
        self,
        training: Training,
        data: TrainingSet,
        config: TrainingConfig,
        session: Session,
        beside: int = 0,
    ) -> None:
        self.name, self.model, self.objective = training.name, training.model, training.objective
        self.seed, self.checkpoint = training.seed, training.folder / "checkpoint"
        self.data, self.config, self.session = data, config, session
        self.device, self.ranks = data.labels.device, session.ranks
        self.optimizer = make_optimizer(self.model, config)
        self.average = WeightAverage(self.model, config.ema) if config.ema else None
        self.batch_size = min(config.batch_size, len(data.images)) // self.ranks.size * self.ranks.size
        if not self.batch_size:
            raise UsageError(f"{len(data.images)} training images for {self.ranks.size} processes: use fewer")
        self.steps_per_epoch = steps_in_epoch(len(data.images), self.batch_size)
        self.images_per_epoch = self.steps_per_epoch * self.batch_size
        self.total_steps = config.epochs * self.steps_per_epoch
        self.step = 0
        self.epoch_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.unchecked: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.current = torch.empty(0, dtype=torch.int64)
        self.take_step: Step | None = None
        self.saved_at = time.monotonic()
        self.beside = beside
        self.lane = Lane(self.random_stream(), self.device, beside > 0)

    def begin(self) -> None:
        """Resume from the checkpoint, if there is one."""
        with self.lane.turn():
            self.resume()
            self.ranks.copy_first(self.model.state_dict().values())
            self.model.train()

    def steps(self) -> Iterator[None]:
        """Run all steps that are left, one by one."""
        while self.step < self.total_steps:
            yield from self.epoch()

    def end(self) -> None:
        """Take the averaged weights and statistics, and check that the last update left them finite."""
        with self.lane.turn():
            if self.average is not None:
                self.average.copy_to_model()
            average_statistics(self.model, self.ranks)
            self.model.eval()
            # The last update comes after the last loss.
            if not all(bool(value.isfinite().all()) for value in self.model.state_dict().values()):
                fix = "lower training.learning_rate"
                raise PmalError(f"{self.name}: weights are infinite or NaN after the last step: {fix}")

    def epoch(self) -> Iterator[None]:
        """Run the rest of the epoch that the next step belongs to, step by step."""
        epoch, done = divmod(self.step, self.steps_per_epoch)
        plan = epoch_plan(len(self.data.images), self.batch_size, stream(self.seed, "order", epoch))[done:]
        own = [positions[self.ranks.share(self.batch_size)] for positions in plan]
        labels = self.data.labels[torch.cat(own).to(self.device)].view(len(own), -1)
        start, first = time.monotonic(), self.step
        for positions, images, labels_B in zip(plan, self.data.images.stream(own), labels, strict=True):
            self.run_step(positions, images, labels_B)
            if self.step % self.steps_per_epoch == 0:
                self.check_losses()  # waits for the device: the speed is that of steps that are done
                self.close_epoch((self.step - first) * self.batch_size / (time.monotonic() - start))
            yield
            overdue = time.monotonic() - self.saved_at >= self.session.resources.checkpoint_seconds
            if overdue and self.ranks.first:
                self.save()

    @property
    def may_stop(self) -> bool:
        """Whether this is a step after which processes ask each other."""
        return self.step % STOP_CHECK_STEPS[self.device.type] == 0 or self.step % self.steps_per_epoch == 0

    def close_epoch(self, images_per_s: float) -> None:
        """Log the epoch, before a checkpoint may put it behind us."""
        self.session.log(
            stage=self.name,
            epoch=self.step // self.steps_per_epoch,
            loss=float(self.epoch_loss) / self.steps_per_epoch,
            rate=self.rate(self.step - 1),
            images_per_s=images_per_s,
            **({"beside": self.beside} if self.beside else {}),
        )
        self.epoch_loss.zero_()

    def run_step(self, positions: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> None:
        if self.take_step is None:
            self.take_step = self.choose_step(images, labels)
        set_rate(self.optimizer, self.rate(self.step))
        self.current = positions
        loss = self.take_step(images, labels)
        self.epoch_loss += loss
        self.step += 1
        if self.device.type == "cuda":
            self.unchecked.append((positions, loss))
            if len(self.unchecked) >= LOSS_CHECK_STEPS:
                self.check_losses()

    def choose_step(self, images: torch.Tensor, labels: torch.Tensor) -> Step:
        """Return the fastest step that works: compiled and captured, captured, or as it is written."""
        eager = self.make_step(self.objective)
        if self.device.type != "cuda":
            return eager
        captured = self.capture("captured", eager, images, labels)
        if captured is None:
            return eager
        left = captured.seconds(eager, self.model) * (self.total_steps - self.step)
        if not self.ranks.largest(int(left >= COMPILE_SECONDS)):
            return captured
        fused = compiled(self.objective)
        if self.ranks.largest(int(fused is None)) or fused is None:  # here or in another process
            return captured
        del captured  # memory for the other; and a capture that fails would part it from its random numbers
        fast = self.capture("compiled", self.make_step(fused), images, labels)
        return fast or self.capture("captured", eager, images, labels) or eager

    def capture(
        self, name: str, step: EagerStep, images: torch.Tensor, labels: torch.Tensor
    ) -> GraphStep | None:
        """Return the captured step. If that fails here or in another process, tell the user and return None.

        An objective that waits for the device cannot be captured, and compilers have faults of their own, of
        any kind. Training goes on without.
        """
        captured, reason = None, "another process cannot"
        try:
            captured = GraphStep(step, self.model, images, labels)
        except Exception as error:
            reason = first_line(error)
        # Exchanges must be captured by all processes or by none.
        if self.ranks.largest(int(captured is None)):
            self.session.display.say(f"{self.name}: cannot be {name} ({reason}); slower steps")
            return None
        return captured

    def make_step(self, objective: Objective) -> EagerStep:
        precision = self.config.precision
        return EagerStep(objective, self.optimizer, self.average, precision, self.guard, self.ranks)

    def guard(self, loss: torch.Tensor) -> None:
        """Stop before the update if the loss is bad, on the CPU.

        A GPU would have to wait: there the check comes later.
        """
        if loss.device.type == "cpu" and not torch.isfinite(loss):
            raise _bad_loss(self.name, float(loss.detach()), self.step, self.data.ids[self.current.numpy()])

    def random_stream(self) -> int:
        """Return the seed of this process's augmentation.

        That of the first does not depend on how many there are.
        """
        path = (self.ranks.rank, self.step) if self.ranks.rank else ()
        return stream(self.seed, "step", *path)

    def rate(self, step: int) -> float:
        return learning_rate(step, self.steps_per_epoch, self.config)

    def check_losses(self) -> None:
        """Stop if a loss since the last look is not finite."""
        losses = torch.stack([loss for _, loss in self.unchecked]).tolist() if self.unchecked else []
        for offset, (loss, (positions, _)) in enumerate(zip(losses, self.unchecked, strict=True)):
            if not np.isfinite(loss):
                step = self.step - len(losses) + offset
                raise _bad_loss(self.name, loss, step, self.data.ids[positions.numpy()])
        self.unchecked.clear()

    def note_other_kernels(self, before: dict[str, Any]) -> None:
        """Warn if this machine computes otherwise than the one that began: the last bits will differ."""
        now = describe_kernels(self.device)
        differ = [
            f"{key} {before[key]}, now {now.get(key, 'none')}"
            for key in before
            if before[key] != now.get(key)
        ]
        if differ:
            rest = "the result is as good, but not the same to the bit as without the interruption"
            self.session.display.say(f"{self.name}: begun with {'; '.join(differ)}: {rest}")

    def save(self) -> None:
        self.check_losses()  # nothing that a bad loss has touched is ever saved
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
        tensors |= {f"random.{key}": value for key, value in random_state(self.device).items()}
        if self.average is not None:
            tensors |= {f"average.{i}": value for i, value in enumerate(self.average.state)}
        tensors["epoch_loss"] = self.epoch_loss
        about = {"step": self.step, "total_steps": self.total_steps, "data": self.data.digest}
        about["kernels"] = describe_kernels(self.device)
        save_tensors(self.checkpoint, tensors, about)
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        if not has_tensors(self.checkpoint, self.ranks):
            return
        tensors, about = load_tensors(self.checkpoint, self.ranks)
        if about["total_steps"] != self.total_steps:
            steps = f"{about['total_steps']} steps, not {self.total_steps}"
            raise DataError(
                f"{self.checkpoint}.json belongs to a training of {steps}: delete it to start again"
            )
        if about["data"] != self.data.digest:
            raise DataError(
                f"{self.checkpoint}.json belongs to other training data: delete it to start again"
            )
        self.note_other_kernels(about.get("kernels", {}))
        self.step = int(about["step"])
        try:
            self.model.load_state_dict(_under(tensors, "model."))
        except RuntimeError:
            raise DataError(
                f"{self.checkpoint}.json belongs to another network: delete it to start again"
            ) from None
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in _under(tensors, "optimizer.").items():
            index, _, name = key.partition(".")
            # Fused optimizers need every state in its parameter's memory format, which files do not keep.
            like = parameters[int(index)]
            same_shape = value.shape == like.shape
            state.setdefault(int(index), {})[name] = (
                torch.empty_like(like).copy_(value) if same_shape else value
            )
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        if self.ranks.first:
            restore_random_state(_under(tensors, "random."), self.device)
        else:  # a checkpoint does not depend on how many processes there were
            torch.manual_seed(self.random_stream())
        if self.average is not None:
            for i, value in enumerate(self.average.state):
                value.copy_(tensors[f"average.{i}"])
        self.epoch_loss.copy_(tensors["epoch_loss"])
        self.session.log(stage=self.name, resumed_at_step=self.step)


def _bad_loss(name: str, loss: float, step: int, ids: np.ndarray[Any, Any]) -> PmalError:
    listed = ", ".join(str(i) for i in ids[:16]) + (f" and {len(ids) - 16} more" if len(ids) > 16 else "")
    fix = "lower training.learning_rate, or look at these samples; the last good checkpoint stays"
    return PmalError(f"{name}: loss is {loss} at step {step} (sample ids {listed}): {fix}")


def _under(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
