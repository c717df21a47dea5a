"""Batches of uint8 images on the device: from memory where the set fits, else through worker processes."""

import contextlib
import functools
import hashlib
import multiprocessing
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from pmal._runtime.launch import usable_cores
from pmal._runtime.signals import end_with_parent, leave_interrupts_to_parent, uninterrupted_starts
from pmal.data.loading import SampleDataset
from pmal.errors import DataError, PmalError

Plan = Sequence[torch.Tensor]
"""Which positions make up each batch, in order."""

BATCHES_AHEAD = 2
"""Steps that a GPU has before it when the host waits for it. More would only fill its memory with batches."""


def epoch_plan(count: int, batch_size: int, seed: int) -> list[torch.Tensor]:
    """A fresh order of all positions in batches of one size.

    The remainder is left out (other samples in every epoch): batch statistics of a few images are poor, and
    one shape serves a whole training. A set smaller than a batch is one batch.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = min(batch_size, count)
    return list(torch.split(order[: count // size * size], size))


def sequential_plan(count: int, batch_size: int) -> list[torch.Tensor]:
    """All positions in order, the last batch possibly smaller."""
    return list(torch.split(torch.arange(count), batch_size))


class ImageBatches(Protocol):
    """Images by position."""

    def __len__(self) -> int: ...

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        """The batches of a plan, uint8 (B, C, H, W), on the device."""
        ...

    def fingerprint(self) -> str:
        """Which images these are: what was trained on others is not taken up."""
        ...


class ResidentImages:
    """All images as one uint8 tensor on the device."""

    def __init__(self, images: torch.Tensor, device: torch.device) -> None:
        self.images = images.to(device)
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        # One transfer for the whole plan, then nothing that the device would have to wait for.
        order = torch.cat(list(plan)).to(self.images.device)
        for positions in torch.split(order, [len(batch) for batch in plan]):
            yield self.images[positions]

    def fingerprint(self) -> str:
        if not self._fingerprint:  # several stages ask, and a set may have gigabytes
            self._fingerprint = hashlib.sha256(self.images.cpu().numpy().data).hexdigest()
        return self._fingerprint


class HostImages:
    """Images of the CPU's memory, each batch copied to the device while the one before it is worked on."""

    def __init__(self, images: torch.Tensor, device: torch.device) -> None:
        self.images, self.device = images, device

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        chosen = (chosen_images(self.images, positions, self.device) for positions in plan)
        return uploaded(chosen, self.device)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.images.contiguous().numpy().data).hexdigest()


class ChosenImages:
    """Some of the images of a larger set."""

    def __init__(self, images: ImageBatches, positions: torch.Tensor) -> None:
        self.images, self.positions = images, positions

    def __len__(self) -> int:
        return len(self.positions)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return self.images.stream([self.positions[batch] for batch in plan])

    def fingerprint(self) -> str:
        chosen = self.positions.numpy().tobytes()
        return hashlib.sha256(self.images.fingerprint().encode() + chosen).hexdigest()


def is_resident(images: ImageBatches) -> bool:
    """Whether the images are in memory, where any number of plans can be streamed at the same time."""
    while isinstance(images, ChosenImages):
        images = images.images
    return isinstance(images, ResidentImages)


class StreamedImages:
    """Images decoded by worker processes as they are needed. The same batches with any number of workers."""

    _latest: "ClassVar[weakref.ref[StreamedImages] | None]" = None
    """The set that has workers: the parts of a run with a process per core each would fill the memory."""

    def __init__(self, dataset: SampleDataset, device: torch.device, workers: int) -> None:
        self.dataset = dataset
        self.device = device
        self.workers = workers or usable_cores()
        self._plan: list[list[int]] = []
        self._loader: DataLoader[torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return uploaded(self.decoded(plan), self.device)

    def decoded(self, plan: Plan) -> Iterator[torch.Tensor]:
        """The batches of a plan in the CPU's memory, pinned for a GPU."""
        if not plan:
            return
        try:
            yield from self._start(plan)
            return
        except DataError as error:
            # torch hands a worker's error on with its traceback; the last line is the message itself.
            lost: Exception = DataError(str(error).strip().splitlines()[-1].partition("DataError: ")[2])
            error.__traceback__ = None
        except RuntimeError as error:
            lost = worker_died(error)
            error.__traceback__ = None if lost is not error else error.__traceback__
        # torch's error refers to itself and, by its traceback, to the workers: they would live on until the
        # garbage collector finds them, and then be waited for, 5 s each.
        self._loader = None
        raise lost

    def end_workers(self) -> None:
        """Those that wait for the next plan; a new one starts others."""
        self._loader = None

    def fingerprint(self) -> str:
        """By their names: reading all of them again would take as long as an epoch."""
        return self._name_digest

    @functools.cached_property
    def _name_digest(self) -> str:
        names = "\n".join(self.dataset.samples.name(position) for position in range(len(self)))
        return hashlib.sha256(names.encode()).hexdigest()

    def _start(self, plan: Plan) -> Iterator[torch.Tensor]:
        """Hand the plan to the workers, new or waiting. Those of another set end, unless it still streams."""
        former = StreamedImages._latest() if StreamedImages._latest else None
        if former is not None and former is not self:
            former.end_workers()
        StreamedImages._latest = weakref.ref(self)
        self._plan[:] = [positions.tolist() for positions in plan]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more than cores, as was asked
            self._loader = self._loader or self._make_loader()
            with uninterrupted_starts(), _unwatched_starts():
                return iter(self._loader)

    def _make_loader(self) -> DataLoader[torch.Tensor]:
        # Persistent: the plan is exchanged between epochs instead.
        return DataLoader(
            self.dataset,
            batch_sampler=self._plan,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            multiprocessing_context=_starter(),
            persistent_workers=True,
            worker_init_fn=_begin,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # or else it draws from the one that trainings repeat by
        )


def chosen_images(images: torch.Tensor, positions: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A batch of images of the CPU's memory."""
    batch = empty_batch((len(positions), *images.shape[1:]), images.dtype, device)
    return torch.index_select(images, 0, positions, out=batch)


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """In the CPU's memory; pinned, so that it can be copied while a GPU works."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def uploaded(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Pinned batches on the GPU, each copied on a stream of its own while the one before it is worked on.

    A batch may be kept: its memory is not used for another one. For a CPU they are there already.
    """
    if device.type == "cpu":
        yield from batches
        return
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    copied: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
    finished: deque[torch.cuda.Event] = deque()

    def work_on_next() -> Iterator[torch.Tensor]:
        images, arrived = copied.popleft()
        computing = torch.cuda.current_stream(device)
        computing.wait_event(arrived)
        images.record_stream(computing)
        yield images
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        finished.append(computing.record_event(done))
        if len(finished) > BATCHES_AHEAD:
            finished.popleft().synchronize()

    for batch in batches:
        with torch.cuda.stream(copying):
            copied.append((batch.to(device, non_blocking=True), copying.record_event()))
        if len(copied) > 1:
            yield from work_on_next()
    while copied:
        yield from work_on_next()


def _starter() -> BaseContext:
    """How workers start: never by a fork of this process, which can hang after torch has used threads.

    A new interpreter each takes seconds to import torch. On Linux one process does that for all, and is
    forked before it does anything else: workers are there at once, and have its memory in common.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", SampleDataset.__module__])
    return context


@contextlib.contextmanager
def _unwatched_starts() -> Iterator[None]:
    """Keep torch from its handler of SIGCHLD: it raises an error wherever the program is when a worker dies.

    A signal to the whole process group ends workers too, and that is no accident. Who waits for a batch of a
    dead worker is told all the same, within 5 s.
    """
    before = signal_handling._SIGCHLD_handler_set
    signal_handling._SIGCHLD_handler_set = True
    try:
        yield
    finally:
        signal_handling._SIGCHLD_handler_set = before


def worker_died(error: Exception) -> Exception:
    """torch's error about a lost worker in our words; any other error as it is."""
    if "DataLoader worker" not in str(error):
        return error
    fix = "give it more shared memory (/dev/shm) or" if "shared memory" in str(error) else "try"
    return PmalError(f"a process that decodes images died: {fix} fewer --workers")


def _begin(worker: int) -> None:
    leave_interrupts_to_parent()
    end_with_parent()


def _as_it_is(batch: Any) -> Any:
    """What `SampleDataset` gives is a batch already."""
    return batch
