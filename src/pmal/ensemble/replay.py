"""What a finished network does, as a CUDA graph: launching kernels one by one takes longer than they do."""

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
"""That are captured."""
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

    On a GPU a shape that comes for the second time is captured, and replayed from then on; on a CPU nothing
    is. Of several threads at the same time one replays, the others compute as it is written.
    """

    def __init__(self, work: Callable[[torch.Tensor], Outputs], model: Classifier) -> None:
        self.work, self.model = work, model
        self._captured: dict[torch.Size, _Captured[Outputs] | None] = {}
        """None: came once."""
        self._refused = False
        self._weight: torch.Tensor | None = None
        self._pool: Any = None
        """Memory that all graphs have in common: one at a time is replayed, and what comes out is copied."""
        self._lock = threading.Lock()

    def __call__(self, images: torch.Tensor) -> Outputs:
        if not images.is_cuda or not len(images) or not self._lock.acquire(blocking=False):
            return self.work(images)
        try:
            replay = self._replay_of(images)
            return replay(images) if replay else self.work(images)
        finally:
            self._lock.release()

    def _replay_of(self, images: torch.Tensor) -> _Captured[Outputs] | None:
        # A graph knows weights by their place in memory: a network that was moved or converted is another.
        # The old weight is kept, or else the new one could come to lie in the same place.
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
                self._refused = True  # of other shapes, too: torch never frees what a failed capture took
        return self._captured[shape]

    def _remember(self, shape: torch.Size) -> None:
        """In the place of one that did not come again, where there are many."""
        came_once = [one for one, found in self._captured.items() if found is None]
        if len(self._captured) == MOST_SHAPES and came_once:
            del self._captured[came_once[0]]
        if len(self._captured) < MOST_SHAPES:
            self._captured[shape] = None

    def _capture(self, images: torch.Tensor) -> _Captured[Outputs]:
        # On the device of the images: on the stream of another one nothing would be captured, and no error.
        with _CAPTURING, torch.cuda.device(images.device):
            return self._capture_here(images)

    def _capture_here(self, images: torch.Tensor) -> _Captured[Outputs]:
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        images = images.clone()
        # Half precision is for speed: there libraries may time their algorithms, and take the fastest. The
        # last bits of float32 are to stay the same from one start to the next.
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
                torch.cuda.set_stream(current)  # torch does not come back from a capture that failed
                raise
            current.wait_stream(stream)
        return _Captured(graph, images, outputs)
