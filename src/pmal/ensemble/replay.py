"""A finished network as a CUDA graph: launching its kernels one by one takes longer than running them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from pmal._runtime.devices import convolutions
from pmal.ensemble.classifier import Classifier

Outputs = TypeVar("Outputs", bound=tuple[torch.Tensor, ...])

WARMUP = 3
MOST_SHAPES = 4
"""Largest number of captured shapes."""
_CAPTURING = threading.Lock()
"""torch allows one capture at a time in a process."""


@dataclass
class _Captured(Generic[Outputs]):
    graph: torch.cuda.CUDAGraph
    images: torch.Tensor
    outputs: Outputs

    def __call__(self, images: torch.Tensor) -> Outputs:
        self.images.copy_(images, non_blocking=True)
        self.graph.replay()
        return type(self.outputs)(output.clone() for output in self.outputs)


class Replayed(Generic[Outputs]):
    """A function of uint8 images and of a network that is not trained any more.

    On a GPU, a shape is captured when it comes for the second time, and replayed from then on. On a CPU
    nothing is captured. If several threads call it at once, one replays and the others compute without a
    graph.
    """

    def __init__(self, work: Callable[[torch.Tensor], Outputs], model: Classifier) -> None:
        self.work, self.model = work, model
        self._captured: dict[torch.Size, _Captured[Outputs] | None] = {}
        """None: the shape came once."""
        self._refused = False
        self._weight: torch.Tensor | None = None
        self._pool: Any = None
        """Memory shared by all graphs: only one is replayed at a time, and its results are copied."""
        self._lock = threading.Lock()

    def __call__(self, images: torch.Tensor) -> Outputs:
        """Return what `work` computes for the images, on a GPU by replaying a graph if possible."""
        if not images.is_cuda or not len(images) or not self._lock.acquire(blocking=False):
            return self.work(images)
        try:
            replay = self._replay_of(images)
            return replay(images) if replay else self.work(images)
        finally:
            self._lock.release()

    def _replay_of(self, images: torch.Tensor) -> _Captured[Outputs] | None:
        # A graph addresses weights by their memory: a network that was moved or converted has new addresses.
        # The old weight is kept, so that the new one cannot get the same address.
        weight = next(iter(self.model.parameters()), self.model.mean).detach()
        if self._weight is None or weight.data_ptr() != self._weight.data_ptr():
            self._captured, self._refused, self._weight, self._pool = {}, False, weight, None
        shape = images.shape
        if shape not in self._captured:
            self._remember(shape)
            return None
        if self._captured[shape] is None and not self._refused:
            try:
                self._captured[shape] = self._capture(images)
            except RuntimeError:  # something in it waits for the device, or there is too little memory
                self._refused = True  # for other shapes too: torch never frees what a failed capture took
        return self._captured[shape]

    def _remember(self, shape: torch.Size) -> None:
        """Remember a shape that came once; if there are many, replace one that did not come again."""
        came_once = [one for one, found in self._captured.items() if found is None]
        if len(self._captured) == MOST_SHAPES and came_once:
            del self._captured[came_once[0]]
        if len(self._captured) < MOST_SHAPES:
            self._captured[shape] = None

    def _capture(self, images: torch.Tensor) -> _Captured[Outputs]:
        # On the images' device: on a stream of another device nothing would be captured, without an error.
        with _CAPTURING, torch.cuda.device(images.device):
            return self._capture_here(images)

    def _capture_here(self, images: torch.Tensor) -> _Captured[Outputs]:
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        images = images.clone()
        # Half precision is for speed: there libraries may time their algorithms and take the fastest. In
        # float32 the last bits must not change from one start to the next.
        fast = self.model.encoder_dtype == torch.float16
        with convolutions(benchmark=True if fast else None):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(WARMUP):
                    self.work(images)
            current.wait_stream(stream)
            graph, mode = torch.cuda.CUDAGraph(), "thread_local"
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                with torch.cuda.graph(graph, self._pool, stream, capture_error_mode=mode):
                    outputs = self.work(images)
            except RuntimeError:
                torch.cuda.set_stream(current)  # torch does not restore it after a failed capture
                raise
            current.wait_stream(stream)
        return _Captured(graph, images, outputs)
