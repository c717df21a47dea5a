"""How much an image unlike all training images adds to the score that decides, chosen on known classes alone.

    python -m benchmarks.penalty --data-root DATA

As in `benchmarks.search`, two of a split's known classes play the unknown ones, and a fifth of the training
images is the test. Trains a small network by PMAL for each problem, and asks for several weights, as square
and as straight line, from a usual known image on or from one that is rarer than nineteen in twenty: how well
left-out classes are told apart, and how much of made images is rejected.
Writes benchmarks/results/search/penalty.json.
"""

import argparse
import itertools
import math
import tempfile
from pathlib import Path

import torch

from benchmarks.search import Try, open_quiet_session, validation_task
from pmal import pipeline
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.benchmark.far.far_images import MADE
from pmal.data.feeding.parts import open_part
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import OpenSetModel
from pmal.rejection.typicality.of_layers import TYPICALITY
from pmal.rejection.typicality.penalty import Penalty
from pmal.reporting.metrics import auroc

OUT = Path(__file__).parent / "results" / "search" / "penalty.json"
PROBLEMS = (("sample", 0, 0), ("sample", 1, 1), ("sample", 2, 2))
PROBLEMS += (("cifar10", 0, 0), ("cifar10", 2, 1), ("cifar10", 4, 2))
LIMIT = {"cifar10": "data.limit=400"}
"""Training images per class: a CPU trains them in a minute."""
WEIGHTS = (0.0, 0.03, 0.1, 0.2, 0.4, 1.0)
POWERS = (1, 2)
STARTS = (0.0, math.log(10))
"""Units above a usual known image from which on typicality counts: the median and the 95 % quantile."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root")
    args = parser.parse_args()
    rows = []
    for source, split, partition in PROBLEMS:
        settings = LIMIT.get(source, "")
        one = Try(
            "pmal", source, "arpl", split, 2, partition, "sample", "small", 12, 0, settings, args.data_root
        )
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(one, Path(folder))
        print(f"{one.problem}: done", flush=True)
    manifest = describe_environment(torch.device("cpu"))
    command = "python -m benchmarks.penalty --data-root DATA"
    write_json(OUT, {"command": command, "rows": rows, "manifest": manifest})


def measure(one: Try, folder: Path) -> list[dict]:
    """Every weight on one problem."""
    session, task = open_quiet_session(one), validation_task(one)
    pipeline.fit(one.config(), folder, session, task=task)
    model = load_model(folder / "model", session.device)
    shape = model.classifier.spec.image_shape
    known = open_part("test", task.test, shape, session).images.images
    unknown = open_part("unknown", task.unknown, shape, session).images.images
    images = {"known": known, "left out": unknown} | {name: make(known[:300]) for name, make in MADE.items()}
    scores = {name: near_and_far(model, pixels) for name, pixels in images.items()}
    return [
        {"problem": one.problem, "weight": weight, "power": power, "start": start}
        | figures(model, scores, weight, power, start)
        for start, power, weight in itertools.product(STARTS, POWERS, WEIGHTS)
    ]


def near_and_far(model: OpenSetModel, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z, logits, far = model.embed(pixels)
    return model.scores(z, logits)[model.rule.score], far.cpu()


def figures(model: OpenSetModel, scores: dict, weight: float, power: int, start: float) -> dict:
    """What is rejected at 95 % acceptance, and the AUROC of the classes left out."""
    held = model.calibration.of(model.rule.score), model.calibration.of(TYPICALITY)
    scale = Penalty.fit(*held)

    def joint(near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        above = ((far - scale.usual) / scale.spread - start).clamp(min=0.0)
        return near + scale.unit * weight * above**power

    limit = conformal_threshold(joint(*held), 0.95).value
    found = {name: joint(*both) for name, both in scores.items()}
    return {
        "auroc": auroc(found["known"], found["left out"]),
        "rejected": {name: float((values > limit).double().mean()) for name, values in found.items()},
    }


if __name__ == "__main__":
    main()
