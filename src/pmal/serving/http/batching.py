"""Micro-batching: images of different requests go through the network together, in one worker thread.

The last bits of a network's output change with the shape of its batch, and at a threshold they decide. So
every batch has one shape, whoever is in it, and the rest is filled up: an answer is then a function of its
image alone. That a row's place in the batch does not matter either is tried when a model is loaded; if it
does, images go through one by one.

B images in a batch.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from pmal.data.samples import Pixels, Vectors
from pmal.ensemble.cost import multiplications
from pmal.optimization.distances import attention_weights
from pmal.rejection.model import Answers, OpenSetModel
from pmal.serving.onnx.parity import random_inputs

WORK = {"cpu": 2e8, "cuda": 1e11}
"""Multiplications that a batch may have: they take about as long as calling a network does anyway."""
LARGEST = 32
SETTLED = 2
"""Answers after which a GPU replays a graph, whose last bits may be others than before."""

Images = Pixels | Vectors
Model = TypeVar("Model")


def batch_size(model: OpenSetModel, wanted: int = 0) -> int:
    """Return how many images the network sees at once; 0: as many as cost little more than one does.

    Not measured by time, since then a restart could change the last bits of every answer.
    """
    size = wanted or _affordable(model)
    return size if is_steady(model, size) else batch_size(model, 1)


def is_steady(model: OpenSetModel, size: int) -> bool:
    """Return whether an image gets the same bits in every place of a batch of this size."""
    images = random_inputs(model, size)
    for _ in range(SETTLED):
        model.answer(images)
    first = _everything(model, images)
    shifts = range(1, size)
    return all(_same_rows(first, _everything(model, images.roll(shift, dims=0)), shift) for shift in shifts)


def prototype_weights(model: OpenSetModel, answers: Answers) -> Tensor | None:
    """Return the share of each prototype in the answer of an image's class, (B, T); None without prototypes.

    In one call whose shape is always the same, and with it the last bits.
    """
    if model.reference is None:
        return None
    reference = model.reference
    nearest_B = answers.nearest.to(reference.mask_KT.device)
    table_BTD, mask_BT = reference.prototypes_KTD[nearest_B], reference.mask_KT[nearest_B]
    return _one_class_each(answers.z.to(table_BTD), table_BTD, mask_BT).cpu()


def answer_padded(model: OpenSetModel, images: Sequence[Images], size: int) -> Answers:
    """Return the answers to at most `size` images (C, H, W); each is the same whatever the others are.

    They come with those to the blank images that fill up the batch.
    """
    batch_BCHW = np.zeros((size, *images[0].shape), images[0].dtype)
    for row, image in enumerate(images):
        batch_BCHW[row] = image
    return model.answer(torch.from_numpy(batch_BCHW))


@dataclass(eq=False)
class _Ticket(Generic[Model]):
    """One image that waits."""

    model: Model
    image: Any
    arrived: float
    answer: asyncio.Future[Any]


class MicroBatcher(Generic[Model]):
    """A queue in front of one worker thread. Whoever does not wait for its answer any more is passed over."""

    def __init__(
        self,
        work: Callable[[Model, list[Any]], list[Any]],
        size_of: Callable[[Model], int],
        wait_seconds: float,
        count: Callable[[int], None] | None = None,
    ) -> None:
        self._work, self._size_of, self._wait, self._count = work, size_of, wait_seconds, count
        self._queue: deque[_Ticket[Model]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pmal-model")
        self._loop: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many images wait."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return self._loop is not None and not self._loop.done()

    async def start(self) -> None:
        """Start the worker."""
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop after the last request was answered."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, model: Model, image: Any) -> Any:
        """Return what `work` says about the image. Cancelled before its batch begins, it costs nothing."""
        answer = asyncio.get_running_loop().create_future()
        self._queue.append(_Ticket(model, image, time.monotonic(), answer))
        self._arrived.set()
        return await answer

    async def _run(self) -> None:
        while True:
            batch = await self._next_batch()
            if batch:
                await self._answer(batch)

    async def _next_batch(self) -> list[_Ticket[Model]]:
        """Return all that wait for the model of the first, as many as fit; empty if nobody waits any more."""
        self._drop_gone()
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
            self._drop_gone()
        first = self._queue[0]
        size = self._size_of(first.model)
        await self._fill(size, first.arrived + self._wait)
        self._drop_gone()
        batch: list[_Ticket[Model]] = []
        while self._queue and len(batch) < size and self._queue[0].model is first.model:
            batch.append(self._queue.popleft())
        return batch

    async def _fill(self, size: int, deadline: float) -> None:
        """Wait for company, but the first never longer than the deadline."""
        while len(self._queue) < size and (left := deadline - time.monotonic()) > 0:
            self._arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _answer(self, batch: list[_Ticket[Model]]) -> None:
        images = [ticket.image for ticket in batch]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._work, batch[0].model, images)
        except Exception as error:
            for ticket in batch:
                if not ticket.answer.done():
                    ticket.answer.set_exception(error)
            return
        if self._count:
            self._count(len(batch))
        for ticket, answer in zip(batch, found, strict=True):
            if not ticket.answer.done():
                ticket.answer.set_result(answer)

    def _drop_gone(self) -> None:
        if any(ticket.answer.done() for ticket in self._queue):
            self._queue = deque(ticket for ticket in self._queue if not ticket.answer.done())


def _affordable(model: OpenSetModel) -> int:
    limit = WORK.get(model.classifier.mean.device.type, WORK["cpu"])
    each, size = max(1, multiplications(model.classifier)), 1
    while size < LARGEST and 2 * size * each <= limit:
        size *= 2
    return size


@torch.vmap
def _one_class_each(z_D: Tensor, prototypes_TD: Tensor, mask_T: Tensor) -> Tensor:
    return attention_weights(z_D[None], prototypes_TD[None], mask_T[None])[0, 0]


def _everything(model: OpenSetModel, images: Tensor) -> list[Tensor]:
    answers = model.answer(images)
    weights_BT = prototype_weights(model, answers)
    found = [getattr(answers, f.name) for f in fields(Answers)]
    return found if weights_BT is None else [*found, weights_BT]


def _same_rows(first: Sequence[Tensor], rolled: Sequence[Tensor], shift: int) -> bool:
    return all(_same(a.roll(shift, dims=0), b) for a, b in zip(first, rolled, strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two are equal to the bit, NaN (p-values without held-out images) to itself."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
