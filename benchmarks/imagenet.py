"""A complete run in the shape of ImageNet-LT, by stage: python -m benchmarks.imagenet --json RESULT.json

1,000 classes with a long tail, photographs of 500 x 375 px, ResNet-50 at 224 px, streamed and kept decoded,
on pictures made up by benchmarks/synthetic.py. Seconds, speed and memory of every stage. `--most` and
`--least` are images per class (ImageNet-LT: 1,280 and 5, which is 115,562 images), `--unknown` the classes
kept out. `--folder` keeps the pictures for another run. Stopped by a signal, it writes the stages that were
done.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import StageClock
from benchmarks.synthetic import long_tail, write_folder
from pmal import pipeline
from pmal._runtime.files import make_folder, read_events, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import open_session
from pmal._runtime.signals import raise_on_signals
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.errors import Interrupted


def time_run(options: argparse.Namespace) -> dict[str, Any]:
    per_class, clock = long_tail(options.classes, options.most, options.least), StageClock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures = options.folder or folder / "set"
        if not pictures.exists():
            write_folder(pictures, per_class, test_per_class=options.test, distinct=1)
        known = sorted(os.listdir(pictures / "train"))[: options.classes - options.unknown]
        chosen = {
            "data": {"source": str(pictures), "known": known, "image_size": options.size},
            "encoder": {"name": options.encoder},
            "training": {"epochs": options.epochs, "batch_size": options.batch_size},
        }
        config = build(RunConfig, merge(read_recipe("imagenet-lt"), chosen))
        resources = Resources(device=options.device, memory_limit=0.0, cache=name)
        session, begin = open_session(resources, clock), time.perf_counter()
        metrics: dict[str, Any] = {}
        with contextlib.suppress(Interrupted):
            metrics = pipeline.fit(config, folder / "run", session)
        seconds = time.perf_counter() - begin
        log = read_events(folder / "run" / "log.jsonl")
    on_gpu = session.device.type == "cuda"
    return {
        "shape": {**vars(options), "json": None, "folder": None, "images": sum(per_class[: len(known)])},
        "finished": bool(metrics),
        "seconds": seconds,
        "stages": clock.seconds,
        "before_stages": clock.before,
        "work": clock.work,
        "images_per_s": [[event["stage"], event["images_per_s"]] for event in log if "epoch" in event],
        "peak_gpu_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "accuracy": metrics["accuracy"]["value"] if metrics else None,
        "manifest": describe_environment(session.device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {"classes": 1000, "unknown": 100, "most": 160, "least": 5, "test": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raise_on_signals("it is not taken up again")
    found = time_run(options)
    if options.json:
        make_folder(options.json.parent)
        write_json(options.json, found)
    print(json.dumps({name: found[name] for name in ("seconds", "stages", "peak_gpu_gib")}, indent=2))


if __name__ == "__main__":
    main()
