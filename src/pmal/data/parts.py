"""From samples to batches: decoded into memory where they fit, streamed where they do not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pmal._runtime.session import Session
from pmal.config import DataConfig
from pmal.data.augmentation import channel_statistics
from pmal.data.batches import ImageBatches, ResidentImages, StreamedImages, sequential_plan
from pmal.data.loading import (
    BadSample,
    SampleDataset,
    check_quarantine,
    load_images,
    probe_shape,
    verify_images,
)
from pmal.data.samples import Samples, VectorStore
from pmal.errors import DataError, UsageError

STATISTICS_LIMIT = 100_000
SMALLEST_SIDE = 8


@dataclass(frozen=True)
class Part:
    """The readable samples of one part, and their images in the same order."""

    samples: Samples
    images: ImageBatches
    unreadable: tuple[BadSample, ...]

    def labels(self, device: torch.device) -> torch.Tensor:
        return torch.from_numpy(self.samples.labels).to(device)

    def quarantine(self) -> dict[str, Any]:
        """For quarantine.json: readable and unreadable add up to the total."""
        listed = [{"id": bad.id, "name": bad.name, "reason": bad.reason} for bad in self.unreadable]
        return {"total": len(self.samples) + len(listed), "readable": len(self.samples), "unreadable": listed}


def image_shape(samples: Samples, config: DataConfig) -> tuple[int, int]:
    """Side and channels of the images as the network sees them; an embedding is one pixel."""
    if isinstance(samples.store, VectorStore):
        return 1, samples.store.vectors.shape[1]
    size, channels = probe_shape(samples)
    size = config.image_size or size
    if size < SMALLEST_SIDE:
        raise UsageError(f"images of {size} px: set data.image_size to {SMALLEST_SIDE} or more")
    return size, channels


def open_part(name: str, samples: Samples, shape: tuple[int, int], session: Session) -> Part:
    """Decode or check every image. Unreadable ones are set aside; too many of them are an error."""
    (size, channels), resources = shape, session.resources
    in_memory = isinstance(samples.store, VectorStore)
    fits = in_memory or len(samples) * channels * size**2 <= resources.memory_limit * 2**30
    with session.display.stage(f"reading {name}", len(samples), "images") as advance:
        if fits:
            loaded = load_images(samples, size=size, channels=channels, advance=advance)
            readable, unreadable = loaded.samples, loaded.quarantine
        else:
            readable, unreadable = verify_images(samples, workers=resources.workers, advance=advance)
    check_quarantine(unreadable, len(samples), name)
    _check_classes(name, samples, readable)
    if unreadable:
        session.display.say(
            f"{name}: {len(unreadable)} of {len(samples)} images left out, see quarantine.json"
        )
    images: ImageBatches
    if fits:
        images = ResidentImages(loaded.images, session.device)
    else:
        images = StreamedImages(SampleDataset(readable, size, channels), session.device, resources.workers)
    return Part(readable, images, tuple(unreadable))


def training_statistics(images: ImageBatches) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation per channel; of more than 100,000 images, over evenly spaced ones."""
    spacing = -(-len(images) // STATISTICS_LIMIT)
    plan = [positions * spacing for positions in sequential_plan(-(-len(images) // spacing), 256)]
    return channel_statistics(images.stream(plan))


def _check_classes(name: str, samples: Samples, readable: Samples) -> None:
    before = np.bincount(samples.labels, minlength=len(samples.class_names))
    after = np.bincount(readable.labels, minlength=len(samples.class_names))
    lost = np.flatnonzero((before > 0) & (after == 0))
    if len(lost):
        known = samples.class_names[lost[0]]
        raise DataError(
            f"{name}: no image of class '{known}' is readable: repair them or leave the class out"
        )
