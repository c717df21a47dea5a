"""What a model says to images that are nothing like its training images, with and without its second score.

    python -m benchmarks.far --seeds 0-2 --data-root DATA

Fits the sample once per seed, and asks each model about known and unknown test images, noise, inverted,
constant, blurred and shuffled ones, and Fashion-MNIST where it is under --data-root. Writes
benchmarks/results/far/sample.json.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from pmal import pipeline
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import open_session
from pmal.benchmark.grid import whole_numbers
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.data.parts import open_part
from pmal.data.sources.registry import open_source
from pmal.data.task import open_task
from pmal.errors import PmalError
from pmal.serving.bundle import load_model

OUT = Path(__file__).parent / "results" / "far" / "sample.json"
COUNT = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--data-root")
    args = parser.parse_args()
    session, rows = open_session(Resources(data_root=args.data_root)), []
    for seed in whole_numbers(args.seeds, "--seeds"):
        config = build(RunConfig, merge(read_recipe("sample"), {"seed": seed}))
        with tempfile.TemporaryDirectory() as folder:
            pipeline.fit(config, Path(folder) / "run", session)
            model = load_model(Path(folder) / "run" / "model", session.device)
        for name, images in far_images(model, config, session).items():
            rows.append({"seed": seed, "images": name, "count": len(images), **rejected(model, images)})
            print(rows[-1], flush=True)
    make_folder(OUT.parent)
    write_json(OUT, {"rows": rows, "manifest": describe_environment(session.device)})


def rejected(model, images) -> dict[str, float]:
    """Shares called unknown: by both scores, and by the near one with the whole budget."""
    near = dataclasses.replace(model, typicality=None)
    return {
        name: float((one.answer(images).labels < 0).double().mean())
        for name, one in (("both", model), ("near", near))
    }


def far_images(model, config, session) -> dict[str, torch.Tensor]:
    task, shape = open_task(config.data, None), model.classifier.spec.image_shape
    known, unknown = (
        open_part("test", part, shape, session).images.images for part in (task.test, task.unknown)
    )
    generator = torch.Generator().manual_seed(0)
    some, like = known[:COUNT], (COUNT, *known.shape[1:])
    found = {
        "known digits": known,
        "unknown digits": unknown,
        "noise": torch.randint(0, 256, like, generator=generator, dtype=torch.uint8),
        "inverted": 255 - some,
        "constant": torch.arange(256, dtype=torch.uint8)[:, None, None, None]
        .expand(-1, *like[1:])
        .contiguous(),
        "blurred": avg_pool2d(some.float(), 7, 1, 3).byte(),
        "shuffled patches": shuffled(some, generator),
    }
    try:
        foreign = open_source("fashion-mnist", session.resources.data_root).test.at(np.arange(COUNT))
        found["Fashion-MNIST"] = open_part("test", foreign, shape, session).images.images
    except PmalError as error:
        print(f"without Fashion-MNIST: {error}")
    return found


def shuffled(images: torch.Tensor, generator: torch.Generator, side: int = 7) -> torch.Tensor:
    """Squares of each image in another order."""
    count, channels, height, width = images.shape
    rows, columns = height // side, width // side
    squares = images.view(count, channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.stack([torch.randperm(rows * columns, generator=generator) for _ in range(count)])
    mixed = squares[torch.arange(count)[:, None], order].view(count, rows, columns, channels, side, side)
    return mixed.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)


if __name__ == "__main__":
    main()
