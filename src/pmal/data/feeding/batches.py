"""Batches of uint8 images on the device: from memory if the set fits, else through worker processes."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch

from pmal.data.decoding.loading import SampleDataset
from pmal.data.feeding.workers import Plan, Workers

BATCHES_AHEAD = 2
"""Steps queued on a GPU when the host waits for it. More would only fill its memory with batches."""

MOST_LEFT_OUT = 0.1
"""Largest share of a set that an epoch may leave out to have batches of one size."""


def epoch_plan(count: int, batch_size: int, seed: int) -> list[torch.Tensor]:
    """Return a new order of all positions in batches of one size.

    Batch statistics of a few images are poor, and one shape serves a whole training. So the remainder is left
    out, different samples in every epoch. If it is more than a tenth of the set, it is filled up with the
    first samples instead. A set smaller than a batch is one batch.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    size = min(batch_size, count)
    wanted = steps_in_epoch(count, batch_size) * size
    return list(torch.split(torch.cat([order, order])[:wanted], size))


def steps_in_epoch(count: int, batch_size: int) -> int:
    """Return how many batches an epoch has.

    >>> steps_in_epoch(24_000, 128), steps_in_epoch(480, 128), steps_in_epoch(5, 128)
    (187, 4, 1)
    """
    whole, rest = divmod(count, min(batch_size, count))
    return whole + (rest > MOST_LEFT_OUT * count)


def sequential_plan(count: int, batch_size: int) -> list[torch.Tensor]:
    """Return all positions in order; the last batch may be smaller."""
    return list(torch.split(torch.arange(count), batch_size))


class ImageBatches(Protocol):
    """Images that are read by position."""

    def __len__(self) -> int: ...

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        """Return the batches of a plan, uint8 (B, C, H, W), on the device."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of the images: weights trained on other images are not resumed."""
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
    """Images in the CPU's memory; each batch is copied to the device while the one before it is used."""

    def __init__(self, images: torch.Tensor, device: torch.device) -> None:
        self.images, self.device = images, device

    def __len__(self) -> int:
        return len(self.images)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return uploaded(map(self._chosen, plan), self.device)

    def _chosen(self, positions: torch.Tensor) -> torch.Tensor:
        batch = empty_batch((len(positions), *self.images.shape[1:]), self.images.dtype, self.device)
        return torch.index_select(self.images, 0, positions, out=batch)

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
    """Return whether the images are in memory, so that any number of plans can be streamed at once."""
    while isinstance(images, ChosenImages):
        images = images.images
    return isinstance(images, ResidentImages)


class StreamedImages:
    """Images decoded by worker processes on demand. The batches do not depend on the number of workers."""

    def __init__(self, dataset: SampleDataset, device: torch.device, workers: int) -> None:
        self.dataset, self.device = dataset, device
        self.workers: Workers[torch.Tensor] = Workers(dataset, workers, pinned=device.type == "cuda")
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self.dataset)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return uploaded(self.workers.results(plan), self.device)

    def fingerprint(self) -> str:
        """Return a digest of the names: reading all images again would take as long as an epoch."""
        if not self._fingerprint:
            names = "\n".join(self.dataset.samples.name(position) for position in range(len(self)))
            self._fingerprint = hashlib.sha256(names.encode()).hexdigest()
        return self._fingerprint


def empty_batch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an empty batch in the CPU's memory, pinned for a GPU so that copying runs next to its work."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def uploaded(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Yield batches on the device; a GPU copies each on its own stream while it works on the one before.

    A batch may be kept: its memory is not reused for another one. On a CPU the batches are there already.
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
