"""Batches of uint8 images on the device: from memory where the set fits, else through worker processes."""

import hashlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch.utils.data import DataLoader

from pmal.data.loading import SampleDataset
from pmal.errors import DataError, PmalError

Plan = Sequence[torch.Tensor]
"""Which positions make up each batch, in order."""


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


class StreamedImages:
    """Images decoded by worker processes as they are needed."""

    def __init__(self, dataset: SampleDataset, device: torch.device, workers: int) -> None:
        self.dataset = dataset
        self.device = device
        self._plan: list[list[int]] = []
        # Spawned, not forked: a fork after torch has used threads can hang. Persistent, because a spawned
        # worker takes seconds to start; the plan is exchanged between epochs instead.
        self._loader = DataLoader(
            dataset,
            batch_sampler=self._plan,
            num_workers=workers or os.cpu_count() or 1,
            multiprocessing_context="spawn",
            persistent_workers=True,
            worker_init_fn=_leave_interrupts_to_parent,
            pin_memory=device.type == "cuda",
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        self._plan[:] = [positions.tolist() for positions in plan]
        try:
            for images in self._loader:
                yield images.to(self.device, non_blocking=True)
        except DataError as error:
            # torch hands a worker's error on with its traceback; the last line is the message itself.
            raise DataError(str(error).strip().splitlines()[-1].partition("DataError: ")[2]) from None
        except RuntimeError as error:
            raise worker_died(error) from None

    def fingerprint(self) -> str:
        """By their names: reading all of them again would take as long as an epoch."""
        names = "\n".join(self.dataset.samples.name(position) for position in range(len(self)))
        return hashlib.sha256(names.encode()).hexdigest()


def worker_died(error: RuntimeError) -> Exception:
    """torch's error about a lost worker in our words; any other error as it is."""
    lost = "DataLoader worker" in str(error)
    return PmalError("a process that decodes images died: try fewer --workers") if lost else error


def _leave_interrupts_to_parent(worker: int) -> None:
    # Ctrl-C reaches the whole process group; the parent saves first and then ends its workers (by SIGTERM).
    signal.signal(signal.SIGINT, signal.SIG_IGN)
