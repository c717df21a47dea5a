"""Does decoding keep up with the network? All figures of one file are from one run.

    python -m benchmarks.streaming decode --json benchmarks/results/speed/streaming-cpu.json
    python -m benchmarks.streaming train --device cuda --json benchmarks/results/speed/streaming-h200.json

decode: images per second and core, of ours and of what a plain loop does (Pillow, and a DataLoader of single
float images). By processor time where one core works, so that other load on the machine does not count.
train: epochs of one training on a set of the shape of ImageNet: images on the device already, streamed, and
kept decoded (`--cache`); and the share of the time in which the device waited for images.
"""

import argparse
import functools
import io
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.synthetic import draw_picture, encode_jpeg, write_pictures
from pmal._engine import loop as training
from pmal._engine.loop import TrainingSet
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.processes.launch import usable_cores
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import DataConfig, EncoderConfig, Resources, RunConfig, TrainingConfig
from pmal.data.decoding.decode import decode, decode_fitted, fit_to, verify
from pmal.data.decoding.decoded import DecodedImages, scratch_file
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import SampleDataset, load_images, verify_images
from pmal.data.feeding.batches import ImageBatches, ResidentImages, StreamedImages, sequential_plan
from pmal.data.feeding.parts import STATISTICS_LIMIT, training_statistics
from pmal.data.feeding.workers import Plan
from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import make_learner, untrained
from pmal.speed.timing import Stopwatch, in_turns

IMAGENET_IMAGES, CORES = 1_281_167, 16
SHAPES = (((500, 375), 224), ((500, 375), 112), ((500, 375), 64), ((2000, 1500), 224), ((8, 8), 8))
"""Width and height of the JPEG, and the wanted size. The last costs what Python does about each image."""
GPU_IMAGES_PER_S = 6700
"""What a ResNet-50 at 224 px takes on one H200, if it never waits (streaming-h200.json)."""


# -- decode --


def plain_pillow(data: bytes, size: int) -> np.ndarray:
    """Shorter side to `size`, then the center: what everybody's transforms do."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


class PlainDataset(Dataset[torch.Tensor]):
    """One normalized float image at a time."""

    def __init__(self, files: list[str], size: int) -> None:
        self.files, self.size = files, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = plain_pillow(Path(self.files[index]).read_bytes(), self.size)
        x = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        return (x - torch.full((3, 1, 1), 0.45)) / 0.22


def per_core(
    methods: dict[str, Callable[[bytes], object]], pictures: list[bytes], repeat: int
) -> dict[str, float]:
    """Images per second of processor time; in turns, the best of each."""
    works = {name: lambda each=each: [each(data) for data in pictures] for name, each in methods.items()}
    watch = Stopwatch(wait=lambda: None, clock=time.process_time)
    seconds = in_turns(works, watch, warmup=0, repeats=repeat)
    return {name: len(pictures) / min(taken) for name, taken in seconds.items()}


def decode_rows(pictures: int, repeat: int) -> list[dict[str, Any]]:
    rows = []
    for (width, height), size in SHAPES:
        few = min(pictures, max(4, pictures * 500 * 375 // (width * height)))
        random = np.random.default_rng(0)
        files = [encode_jpeg(draw_picture(random, width, height, label)) for label in range(few)]
        methods: dict[str, Callable[[bytes], object]] = {
            "Pillow": functools.partial(plain_pillow, size=size),
            "pmal, whole decode": lambda data, size=size: fit_to(decode(data), size, 3),
            "pmal": lambda data, size=size: decode_fitted(data, size, 3),
            "pmal, decode alone": decode,
            "pmal, verify": verify,
        }
        apart = [
            np.abs(decode_fitted(data, size, 3).astype(int) - fit_to(decode(data), size, 3)).mean()
            for data in files
        ]
        row = {
            "jpeg": f"{width}x{height}",
            "kilobytes": float(np.mean([len(data) for data in files])) / 1e3,
            "to": size,
            "images_per_core_s": per_core(methods, files, repeat),
            "mean_difference": float(np.mean(apart)),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def loader_rows(folder: str, pictures: int, workers: int, repeat: int) -> list[dict[str, Any]]:
    """Whole loaders, by the clock: 500x375 to 224 px, batches of 64."""
    files = write_pictures(folder, pictures)
    size, plan = 224, sequential_plan(pictures, 64)
    samples = Samples.whole(FileStore(folder, files), np.zeros(pictures, np.int64), ("all",))
    streamed = StreamedImages(SampleDataset(samples, ImageShape(size, 3)), torch.device("cpu"), workers)
    plain = DataLoader(
        PlainDataset([os.path.join(folder, file) for file in files], size),
        batch_size=64,
        num_workers=workers,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    methods: dict[str, Callable[[], object]] = {
        "DataLoader of single float images": lambda: [len(batch) for batch in plain],
        "pmal": lambda: [len(batch) for batch in streamed.stream(plan)],
        "pmal, verify": lambda: verify_images(samples, workers=workers),
    }
    watch = Stopwatch.of(torch.device("cpu"))
    seconds = in_turns(methods, watch, warmup=1, repeats=repeat)  # in the first turn, workers start
    rows = [
        {"loader": name, "workers": workers, "images_per_s": pictures / min(taken)}
        for name, taken in seconds.items()
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def cache_rates(folder: str, images: int = 2048, batch_size: int = 256) -> dict[str, float]:
    """Of a file of decoded images (`--cache`), in random order: written, then read, mostly from memory."""
    random = torch.Generator().manual_seed(0)
    plan = torch.randperm(images, generator=random).split(batch_size)
    batch = torch.randint(0, 256, (batch_size, 3, 224, 224), dtype=torch.uint8, generator=random)
    file, rates = scratch_file(Path(folder), (images, 3, 224, 224)), {}
    for name, move in (("written", file.write), ("read", file.read)):
        begin = time.perf_counter()
        for positions in plan:
            move(positions, batch)
        rates[f"{name}_images_per_s"] = images / (time.perf_counter() - begin)
    print(json.dumps(rates), flush=True)
    return rates


def before_training(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What ImageNet costs until the first step, if 16 cores are 16 times one; the disk not counted."""
    speed = rows[0]["images_per_core_s"]
    every = -(-IMAGENET_IMAGES // STATISTICS_LIMIT)
    return {
        "images": IMAGENET_IMAGES,
        "cores": CORES,
        "verification_s": IMAGENET_IMAGES / (CORES * speed["pmal, verify"]),
        "verification_by_whole_decode_s": IMAGENET_IMAGES / (CORES * speed["pmal, decode alone"]),
        "statistics_s": IMAGENET_IMAGES / every / (CORES * speed["pmal"]),
        "epoch_decode_s": IMAGENET_IMAGES / (CORES * speed["pmal"]),
        "cores_for_one_gpu": GPU_IMAGES_PER_S / speed["pmal"],
    }


def run_decode(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = decode_rows(options.pictures, options.repeat)
    with tempfile.TemporaryDirectory() as folder:
        loaders = loader_rows(folder, 4 * options.pictures, options.workers, options.repeat)
        cache = cache_rates(folder)
    load = {"load_average": os.getloadavg()[0]}  # above the workers' number, others slowed the loaders down
    return {"decode": rows, "loaders": loaders, "cache": cache, "imagenet": before_training(rows)} | load


# -- train --


class Watched:
    """The same images from another place in every epoch; when each batch was ready, and was done with."""

    def __init__(self, places: Sequence[ImageBatches], device: torch.device) -> None:
        self.places, self.device = places, device
        self.epochs: list[list[tuple[Any, Any]]] = []

    def __len__(self) -> int:
        return len(self.places[0])

    def fingerprint(self) -> str:
        return ""

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        images, begin = self.places[len(self.epochs)], self.mark()
        self.epochs.append([(begin, begin)])
        for batch in images.stream(plan):
            ready = self.mark()
            yield batch
            self.epochs[-1].append((ready, self.mark()))

    def mark(self) -> Any:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def row(self, epoch: int, batch_size: int) -> dict[str, float]:
        """Of one epoch: its speed, and the share of its time before and between steps."""
        steps = self.epochs[epoch]
        gaps = [self.seconds(done, ready) for (_, done), (ready, _) in itertools.pairwise(steps)]
        seconds, count = self.seconds(steps[0][0], steps[-1][1]), len(steps) - 1
        speed = count * batch_size / seconds
        return {"images_per_s": speed, "steps": count, "waited_share": sum(gaps) / seconds}

    def seconds(self, start: Any, end: Any) -> float:
        if self.device.type == "cpu":
            return float(end - start)
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class Repeated:
    """A few images on the device that stand for all: what the network does when it never waits."""

    def __init__(self, images: torch.Tensor, count: int, device: torch.device) -> None:
        self.images, self.count = ResidentImages(images, device), count

    def __len__(self) -> int:
        return self.count

    def fingerprint(self) -> str:
        return ""

    def stream(self, plan: Plan) -> Iterator[torch.Tensor]:
        return self.images.stream([positions % len(self.images) for positions in plan])


def train_epochs(
    images: Watched, options: argparse.Namespace, statistics: Sequence[torch.Tensor]
) -> dict[str, float]:
    """An epoch from each place, by the training loop of every run, as one of many epochs: compiled."""
    device = images.device
    classes = tuple(f"class {k}" for k in range(options.classes))
    settings = TrainingConfig(len(images.places), options.batch_size, weight_decay=1e-4)
    config = RunConfig(
        data=DataConfig(augmentation="imagenet"), encoder=EncoderConfig(options.encoder), training=settings
    )
    spec = ClassifierSpec(config.encoder, classes, options.size, 3)
    model = untrained(spec, *statistics, seed=0).to(device)
    labels = torch.arange(len(images), device=device) % options.classes
    data = TrainingSet(images, labels, np.arange(len(images)))
    session = Session(device, Resources(checkpoint_seconds=1e9), Silent())
    _, objective = make_learner(model, config, flip=True, seed=0)
    with tempfile.TemporaryDirectory() as name, mock.patch.object(training, "COMPILE_SECONDS", 0):
        one = training.Training("net", model, objective, 0, Path(name))
        training.train_together("net", [one], data, settings, session)
    return {"device_gib": torch.cuda.max_memory_allocated() / 2**30} if device.type == "cuda" else {}


def run_train(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        files = write_pictures(folder, options.distinct)
        rows = np.arange(options.images) % options.distinct
        store = FileStore(folder, [files[row] for row in rows.tolist()])
        samples = Samples.whole(store, np.zeros(options.images, np.int64), ("all",))
        begin = time.perf_counter()
        verify_images(samples, workers=options.workers)
        verified = options.images / (time.perf_counter() - begin)
        fitting = ImageShape(options.size, 3)
        few = load_images(samples.at(np.arange(options.distinct)), fitting).images
        resident = Repeated(few, options.images, device)
        streamed = StreamedImages(SampleDataset(samples, fitting), device, options.workers)
        list(streamed.stream(sequential_plan(options.workers, 1)))  # workers take seconds to start
        shape = (options.images, 3, options.size, options.size)
        kept = DecodedImages(streamed, scratch_file(Path(folder), shape))
        # The first epoch compiles. The cache is filled in its first one, by the same workers, which end in
        # its second.
        places = {"compiling": resident, "resident": resident, "streamed": streamed}
        places |= {f"cache, {nth} epoch": kept for nth in ("first", "second", "third")}
        images = Watched(list(places.values()), device)
        memory = train_epochs(images, options, training_statistics(resident))
        epochs = {place: images.row(i, options.batch_size) for i, place in enumerate(places)}
    del epochs["compiling"]
    print(json.dumps(epochs, indent=2))
    return {
        **{name: getattr(options, name) for name in ("encoder", "size", "batch_size", "classes", "images")},
        "workers": streamed.workers.count,
        "verified_images_per_s": verified,
        "epochs": epochs,
        **memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    decoding = parts.add_parser("decode")
    decoding.add_argument("--pictures", type=int, default=64)
    decoding.add_argument("--repeat", type=int, default=5)
    epochs = parts.add_parser("train")
    epochs.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    epochs.add_argument("--encoder", default="resnet50")
    epochs.add_argument("--size", type=int, default=224)
    epochs.add_argument("--batch-size", type=int, default=256)
    epochs.add_argument("--images", type=int, default=25_600, help="of an epoch")
    epochs.add_argument("--classes", type=int, default=1000)
    epochs.add_argument("--distinct", type=int, default=512, help="pictures drawn; the rest repeats them")
    for part in (decoding, epochs):
        part.add_argument("--workers", type=int, default=usable_cores())
        part.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    found = run_decode(options) if options.part == "decode" else run_train(options)
    device = torch.device(getattr(options, "device", "cpu"))
    if options.json:
        make_folder(options.json.parent)
        write_json(options.json, found | {"manifest": describe_environment(device)})


if __name__ == "__main__":
    main()
