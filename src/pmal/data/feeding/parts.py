"""From samples to batches: decoded into memory if they fit, streamed if they do not."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmal._runtime.progress import Advance, Display
from pmal._runtime.session import Session
from pmal.config import DataConfig
from pmal.data.decoding.decoded import DecodedImages, scratch_file
from pmal.data.decoding.fitting import BadSample, ImageShape
from pmal.data.decoding.loading import (
    SampleDataset,
    check_quarantine,
    load_images,
    probe_shape,
    verify_images,
)
from pmal.data.feeding.augmentation import channel_statistics
from pmal.data.feeding.batches import (
    ImageBatches,
    ResidentImages,
    StreamedImages,
    is_resident,
    sequential_plan,
)
from pmal.data.samples import Samples, VectorStore, name_in_source
from pmal.errors import DataError, UsageError

STATISTICS_LIMIT = 100_000
SMALLEST_SIDE = 8
FEW_IMAGES = 5
"""A class with fewer is learned hardly, and is tested by none or one."""


@dataclass(frozen=True)
class Part:
    """The readable samples of one part, and their images in the same order."""

    samples: Samples
    images: ImageBatches
    unreadable: tuple[BadSample, ...]

    def labels(self, device: torch.device) -> Tensor:
        """Return the labels as a tensor on the device."""
        return torch.from_numpy(self.samples.labels).to(device)

    def quarantine(self) -> dict[str, Any]:
        """Return the content of quarantine.json: readable and unreadable add up to the total."""
        store = self.samples.store
        listed = [
            {"id": bad.id, "name": name_in_source(store, bad.id), "reason": bad.reason}
            for bad in self.unreadable
        ]
        return {"total": len(self.samples) + len(listed), "readable": len(self.samples), "unreadable": listed}


def image_shape(samples: Samples, config: DataConfig) -> ImageShape:
    """Return side and channels of the images as the network sees them; an embedding is one pixel."""
    if isinstance(samples.store, VectorStore):
        return ImageShape(1, samples.store.vectors.shape[1])
    size, channels = probe_shape(samples)
    size = config.image_size or size
    if size < SMALLEST_SIDE:
        raise UsageError(f"images of {size} px: set data.image_size to {SMALLEST_SIDE} or more")
    return ImageShape(size, channels)


def open_part(name: str, samples: Samples, shape: ImageShape, session: Session) -> Part:
    """Decode or check every image. Unreadable ones are set aside; too many of them are an error.

    Several processes share the work, and each gets all that came out.
    """
    resources, ranks = session.resources, session.ranks
    in_memory = isinstance(samples.store, VectorStore)
    fits = in_memory or len(samples) * math.prod(shape.of_tensor) <= resources.memory_limit * 2**30
    room = None
    if not fits and resources.cache and name == "train":  # the others are looked at once or twice
        # Before anything is read: that takes long, and the folder may be a wrong one.
        room = scratch_file(Path(resources.cache), (len(samples), *shape.of_tensor), ranks)
    elif resources.cache and name == "train":
        session.display.say(
            f"--cache {resources.cache} is not used: the training images are held in memory, not streamed"
        )
    own = samples.at(np.arange(len(samples))[ranks.share(len(samples))])
    with session.display.stage(f"reading {name}", len(samples), samples.unit) as advance:
        report = ranks.for_all(advance)
        if fits:
            loaded = load_images(own, shape, advance=report)
            pixels = ranks.gather_rows(loaded.images, ranks.gather(len(loaded.images)))
            bad = loaded.quarantine
        else:
            _, bad = verify_images(own, workers=resources.workers, advance=report)
    readable, unreadable = set_aside(name, samples, bad, session)
    images: ImageBatches
    if fits:
        images = ResidentImages(pixels, session.device)
    else:
        images = StreamedImages(SampleDataset(readable, shape), session.device, resources.workers)
        images = images if room is None else DecodedImages(images, room)
    return Part(readable, images, unreadable)


def set_aside(
    name: str, samples: Samples, bad: list[BadSample], session: Session
) -> tuple[Samples, tuple[BadSample, ...]]:
    """Return the readable samples and those that are not, as all processes found them; say what is thin.

    `bad` is what this process could not read. Too many of them are an error.
    """
    unreadable = [
        BadSample(**one) for listed in session.ranks.gather(list(map(asdict, bad))) for one in listed
    ]
    readable = samples.at(~np.isin(samples.ids, [one.id for one in unreadable]))
    check_quarantine(unreadable, len(samples), name, unit=samples.unit)
    check_classes(name, samples, readable)
    if name == "train" and (thin := _thin_classes(readable)):
        session.display.say(f"warning: {thin}")
    if unreadable:
        session.display.say(
            f"{name}: {len(unreadable)} of {len(samples)} {samples.unit} left out, see quarantine.json"
        )
    return readable, tuple(unreadable)


def training_statistics(images: ImageBatches, display: Display | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel; of more than 100,000 images, over evenly spaced ones.

    To decode so many takes long enough to be displayed.
    """
    spacing = -(-len(images) // STATISTICS_LIMIT)
    count = -(-len(images) // spacing)
    batches = images.stream([positions * spacing for positions in sequential_plan(count, 256)])
    if display is None or is_resident(images):
        return channel_statistics(batches)
    with display.stage("mean and deviation", count, "images") as advance:
        return channel_statistics(_counted(batches, advance))


def _counted(batches: Iterable[Tensor], advance: Advance) -> Iterator[Tensor]:
    for batch in batches:
        yield batch
        advance(len(batch))


def _thin_classes(samples: Samples) -> str:
    """Return which classes have hardly any sample, in one line; empty if none."""
    counts = np.bincount(samples.labels, minlength=len(samples.class_names))
    thin = int((counts < FEW_IMAGES).sum())
    fewest = f"only {counts.min()} to learn class '{samples.class_names[counts.argmin()]}' from"
    return (
        f"few {samples.unit}: {fewest}; {thin} of {len(counts)} classes have less than {FEW_IMAGES}"
        if thin
        else ""
    )


def check_classes(name: str, samples: Samples, readable: Samples) -> None:
    """Refuse a part of which a class has no readable image left."""
    before = np.bincount(samples.labels, minlength=len(samples.class_names))
    after = np.bincount(readable.labels, minlength=len(samples.class_names))
    lost = np.flatnonzero((before > 0) & (after == 0))
    if len(lost):
        what = f"{samples.unit[:-1]} of class '{samples.class_names[lost[0]]}'"
        raise DataError(f"{name}: no {what} is readable: repair them or leave the class out")
