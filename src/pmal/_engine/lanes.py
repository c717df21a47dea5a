"""Trainings that take turns in one process, step by step, and run at the same time on a GPU.

The steps of a small network leave most of a GPU idle. Work handed out on several CUDA streams fills it.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from pmal._runtime.seeds import OwnRandomness


class Lane:
    """The random numbers of one training and, if several run side by side, its own CUDA stream.

    All work on the training's tensors happens in its lane, from reading a checkpoint on: nothing else orders
    it with the rest of the device's work.
    """

    def __init__(self, seed: int, device: torch.device, beside: bool) -> None:
        self.random = OwnRandomness(seed, device)
        self.stream: torch.cuda.Stream | None = None
        if beside and device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # Images, labels and first weights were made on the caller's stream.
            self.stream.wait_stream(torch.cuda.current_stream(device))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Use this lane's random numbers and stream inside the block."""
        stream = contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with self.random.current(), stream:
            yield

    def join(self) -> None:
        """Make the caller's stream wait for all work of the lane."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


def take_turns(works: Sequence[tuple[Lane, Iterator[object]]]) -> Iterator[int]:
    """Take one item of each work in turn, each in its lane, until all are done; yield whose turn it was.

    >>> lanes = [Lane(seed, torch.device("cpu"), beside=True) for seed in (0, 1)]
    >>> list(take_turns([(lanes[0], iter("ab")), (lanes[1], iter("abcd"))]))
    [0, 1, 0, 1, 1, 1]
    """
    waiting = deque(enumerate(works))
    while waiting:
        index, (lane, work) = waiting.popleft()
        with lane.turn():
            done = next(work, works) is works
        if not done:
            waiting.append((index, (lane, work)))
            yield index
