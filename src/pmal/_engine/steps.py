"""One training step: run eagerly, or captured once as a CUDA graph and replayed.

A step of a small network is a few hundred short kernels; launched one by one from Python they take several
times as long as they compute. Replaying a graph launches all of them at once.
"""

import inspect
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from pmal._engine.optimizers import WeightAverage
from pmal._runtime.devices import autocast
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.seeds import random_state, renew_random_state, restore_random_state

Objective = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""uint8 images (B, C, H, W) and labels (B,) in, the loss to minimize out."""

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Images and labels in. Updates the weights and returns the loss before the update."""

WARMUP_STEPS = 3
TIMED_STEPS = 5
RECOMPILES = 256
_KNOWS_LIMIT = "recompile_limit" in inspect.signature(torch.compile).parameters


class EagerStep:
    """Run forward, backward and update. `guard` sees the loss before the weights change.

    With several processes, each has its share of the batch. Loss and gradients are averaged in one exchange
    after the backward pass. For ResNet-50 this is 100 MB, which NVLink moves in a hundredth of the step's
    time. A graph captures it like any other kernel. Every process sees the same loss, so all stop together.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage | None,
        precision: str,
        guard: Callable[[torch.Tensor], None],
        ranks: Ranks = ALONE,
    ) -> None:
        self.objective, self.optimizer, self.average = objective, optimizer, average
        self.precision, self.guard, self.ranks = precision, guard, ranks

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with autocast(labels.device, self.precision):
            loss = self.objective(images, labels)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        loss = loss.detach()
        self.ranks.average([*self.gradients(), loss])
        self.guard(loss)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return loss

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of all parameters that have one."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return [p.grad for p in parameters if p.grad is not None]


def compiled(objective: Objective) -> Objective | None:
    """Return the objective with its small operations fused, or None without a compiler.

    Random numbers are drawn in another order than without compilation, from the same generator.
    """
    if find_spec("triton") is None:
        return None
    # A benchmark has many different networks. By default, the ninth in one process would stay uncompiled.
    # Older versions of torch have no such option and keep that limit.
    more: dict[str, Any] = {"recompile_limit": RECOMPILES} if _KNOWS_LIMIT else {}
    fused: Objective = torch.compile(objective, dynamic=False, **more)
    return fused


class GraphStep:
    """The same step as a CUDA graph, for batches of one shape. Nothing in it may wait for the device."""

    def __init__(self, step: EagerStep, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
        torch.cuda.synchronize(labels.device)  # libraries time their algorithms: nothing else may run
        self.images, self.labels = images.clone(), labels.clone()
        restore = _snapshot(model, step, labels.device)
        with torch.cuda.device(labels.device):  # a stream of another device would capture nothing
            current = torch.cuda.current_stream()
            try:
                self.graph, self.loss = self._capture(step)
            except BaseException:  # also a second Ctrl-C: a notebook's process goes on
                torch.cuda.set_stream(current)  # torch does not restore it after a failed capture
                renew_random_state(labels.device)
                raise
            finally:
                restore()

    def _capture(self, step: EagerStep) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        # Not torch's shared capture stream: cuBLAS has one workspace per stream. Graphs captured on the same
        # stream would share it, and overwrite it when they run side by side.
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks on its own choices
            # Libraries choose their algorithms and allocate their buffers now, not while capturing.
            for _ in range(WARMUP_STEPS):
                step(self.images, self.labels)
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may do what must not be captured: one pins the memory of streamed batches, another is
        # NCCL's watchdog.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            loss = step(self.images, self.labels)
        current.wait_stream(stream)  # the graph's offset in the random numbers was set on that stream
        return graph, loss

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.images.copy_(images, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)
        self.graph.replay()
        return self.loss.clone()

    def seconds(self, step: EagerStep, model: nn.Module) -> float:
        """Return the time of one replay, measured under the device's current load.

        With several processes, all must call it after all have captured: the timed steps exchange data.
        """
        restore = _snapshot(model, step, self.labels.device)
        try:
            with torch.cuda.device(self.labels.device):
                return _seconds(self.graph.replay)
        finally:
            restore()


def _seconds(replay: Callable[[], None]) -> float:
    replay()  # the first replay also uploads the graph to the device
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(TIMED_STEPS):
        replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / TIMED_STEPS


def _snapshot(model: nn.Module, step: EagerStep, device: torch.device) -> Callable[[], None]:
    """Remember everything that a step changes; return a function that restores it in the same memory."""

    def tensors() -> list[torch.Tensor]:
        state = [t for s in step.optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
        return [*model.state_dict().values(), *state, *(step.average.state if step.average else [])]

    before = {tensor.data_ptr(): tensor.clone() for tensor in tensors()}
    generators = random_state(device)

    def restore() -> None:
        for tensor in tensors():
            # Momentum that the first step created begins at zero.
            old = before.get(tensor.data_ptr())
            tensor.zero_() if old is None else tensor.copy_(old)
        restore_random_state(generators, device)

    return restore
