"""How much an image unlike all training images adds to the score that decides, chosen on known classes alone.

    python -m benchmarks.penalty --data-root DATA [--work WORK]
    python -m benchmarks.penalty --data-root DATA [--work WORK] --directions

As in `benchmarks.search`, two of a split's known classes play the unknown ones, and a fifth of the training
images is the test. Trains a small network by PMAL for each problem, and asks for several weights, as square
and as straight line: how well left-out classes are told apart, and how much of made images is rejected.
Writes benchmarks/results/search/penalty.json. With --directions, it asks for several numbers of directions of
each layer, on one problem of each set, and writes directions.json. Finished runs under WORK are loaded.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import torch

from benchmarks.search import Try, open_quiet_session, validation_task
from pmal import pipeline
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.benchmark.far.far_images import MADE
from pmal.data.feeding.parts import Part, open_part
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.calibration.held_out import _folds, _without
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import OpenSetModel
from pmal.rejection.typicality.of_layers import DIRECTIONS, typicality_of
from pmal.rejection.typicality.penalty import WEIGHT, Penalty
from pmal.reporting.metrics import auroc

OUT = Path(__file__).parent / "results" / "search"
PROBLEMS = (("sample", 0, 0), ("sample", 1, 1), ("sample", 2, 2))
PROBLEMS += (("cifar10", 0, 0), ("cifar10", 2, 1), ("cifar10", 4, 2))
LIMIT = {"cifar10": "data.limit=400"}
"""Training images per class: a CPU trains them in a minute."""
WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.4)
POWERS = (1, 2)
NUMBERS = (16, 32, 64, 128)
"""Of directions, with the weight and the square that count."""
Observed = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The near score of images, and what the layers see of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root")
    parser.add_argument("--work", type=Path, help="folder for the runs, which stay; default: a temporary one")
    parser.add_argument("--directions", action="store_true")
    args = parser.parse_args()
    tries = [(power, weight, DIRECTIONS) for power in POWERS for weight in WEIGHTS]
    problems, name, option = PROBLEMS, "penalty", ""
    if args.directions:
        tries = [(2, WEIGHT, directions) for directions in NUMBERS]
        problems, name, option = PROBLEMS[::3], "directions", " --directions"
    rows = []
    for source, split, partition in problems:
        settings = LIMIT.get(source, "")
        one = Try(
            "pmal", source, "arpl", split, 2, partition, "sample", "small", 12, 0, settings, args.data_root
        )
        with contextlib.ExitStack() as stack:
            folder = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rows += measure(one, folder / one.problem, tries)
        print(f"{one.problem}: done", flush=True)
    manifest = describe_environment(torch.device("cpu"))
    command = f"python -m benchmarks.penalty --data-root DATA{option}"
    write_json(OUT / f"{name}.json", {"command": command, "rows": rows, "manifest": manifest})


def measure(one: Try, folder: Path, tries: list[tuple[int, float, int]]) -> list[dict]:
    """Every power, weight and number of directions on one problem."""
    session, task = open_quiet_session(one), validation_task(one)
    pipeline.fit(one.config(), folder, session, task=task)
    model = load_model(folder / "model", session.device)
    shape = model.classifier.spec.image_shape
    named = {"train": task.train, "held out": task.held_out, "known": task.test, "left out": task.unknown}
    parts: dict[str, Part] = {name: open_part(name, part, shape, session) for name, part in named.items()}
    images = {name: part.images.images for name, part in parts.items()}
    images |= {name: make(images["known"][:300]) for name, make in MADE.items()}
    seen = {name: observe(model, pixels) for name, pixels in images.items()}
    held = model.calibration.of(model.rule.score), seen["held out"][1]
    seen["held out"] = held  # each by the scale of the other images
    return [
        {"problem": one.problem, "weight": weight, "power": power, "directions": directions}
        | figures(seen, weight, power, directions)
        for power, weight, directions in tries
    ]


@torch.no_grad()
def observe(model: OpenSetModel, pixels: torch.Tensor) -> Observed:
    near, statistics = [], []
    for batch in torch.split(pixels, 256):
        z, logits, found = model.classifier.embed_observed(batch)
        near.append(model.scores(z, logits)[model.rule.score])
        statistics.append(dict(found))
    return torch.cat(near), {name: torch.cat([one[name] for one in statistics]) for name in statistics[0]}


def figures(seen: dict[str, Observed], weight: float, power: int, directions: int) -> dict:
    """What is rejected at 95 % acceptance, and the AUROC of the classes left out."""
    training = {name: x.numpy() for name, x in seen["train"][1].items()}
    typicality = typicality_of(training, directions)
    both = {name: (near, typicality(found)) for name, (near, found) in seen.items() if name != "train"}

    def joint(scale: Penalty, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        above = ((far - scale.usual) / scale.spread).clamp(min=0.0)
        return near + scale.unit * weight * above**power

    near, far = both.pop("held out")
    scale, held = Penalty.fit(near, far), near.clone()
    for fold in _folds(len(near)):
        rest = _without(fold, len(near))
        held[fold] = joint(Penalty.fit(near[rest], far[rest]), near[fold], far[fold])
    limit = conformal_threshold(held, 0.95).value
    found = {name: joint(scale, *pair) for name, pair in both.items()}
    return {
        "auroc": auroc(found["known"], found["left out"]),
        "rejected": {name: float((values > limit).double().mean()) for name, values in found.items()},
    }


if __name__ == "__main__":
    main()
