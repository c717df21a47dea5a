"""Trainings that take turns in one process, step by step, and on a GPU run at the same time.

The steps of a small network leave most of a GPU idle. Work handed out on several CUDA streams fills it.
"""

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from pmal._runtime.seeds import OwnRandomness


class Lane:
    """Where the work of one training goes: its own random numbers and, beside others, its own CUDA stream.

    All that touches the training's tensors happens in its lane, from the first look at a checkpoint on:
    nothing else orders it with the rest of the device's work.
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
        """Inside the block, random numbers and the device's work are this lane's."""
        stream = contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)
        with self.random.current(), stream:
            yield

    def join(self) -> None:
        """What the caller's stream does from now on comes after all that the lane has done."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


def take_turns(works: Sequence[tuple[Lane, Iterator[object]]]) -> Iterator[int]:
    """One item of each work after the other, each in its lane, until all are done; says whose turn it was.

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
