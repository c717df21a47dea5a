"""How much an image unlike all training images adds to the score that decides, chosen on known classes alone.

    python -m benchmarks.penalty --data-root DATA [--work WORK]
    python -m benchmarks.penalty --data-root DATA [--work WORK] --directions

As in `benchmarks.search`, two of a split's known classes play the unknown ones, and a fifth of the training
images is the test. Trains a small network by PMAL for each problem, and asks for several starts and weights
of the penalty and for several forms of the statistics: how well left-out classes are told apart, and how much
of made images is rejected. Writes benchmarks/results/search/penalty.json. With --directions, it asks for
several numbers of directions of each layer, on one problem of each set, and writes directions.json. Finished
runs under WORK are loaded.
"""

import argparse
import contextlib
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import torch

from benchmarks.search import Try, open_quiet_session, validation_task
from pmal import pipeline
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.benchmark.far.far_images import MADE
from pmal.data.feeding.parts import Part, open_part
from pmal.data.samples import evenly
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.calibration.held_out import _folds, _without
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import OpenSetModel
from pmal.rejection.typicality import of_layers
from pmal.rejection.typicality.of_layers import DIRECTIONS, FITTED_IMAGES, OFFSET, SHARE, typicality_of
from pmal.rejection.typicality.penalty import START, WEIGHT, Penalty
from pmal.reporting.metrics import auroc

OUT = Path(__file__).parent / "results" / "search"
PROBLEMS = (("sample", 0, 0), ("sample", 1, 1), ("sample", 2, 2))
PROBLEMS += (("cifar10", 0, 0), ("cifar10", 2, 1), ("cifar10", 4, 2), ("tinyimagenet", 0, 0))
"""Data, split, and which of its classes are left out. Weak networks do not show what a penalty costs."""
LEFT_OUT = {"tinyimagenet": 6}
"""Known classes that play the unknown ones; of other sets 2."""
MOST = 1500
"""Test images of each kind at most."""


@dataclass(frozen=True)
class Form:
    """One way to make a penalty of typicality."""

    start: float = START
    weight: float = WEIGHT
    offset: float = OFFSET
    share: float = SHARE
    directions: int = DIRECTIONS


FORMS = [Form(weight=0.0), Form(start=0.0, weight=0.1)]
FORMS += [Form(weight=weight) for weight in (0.1, 0.2, 0.4)]
FORMS += [Form(start=math.log(100), weight=weight) for weight in (1.0, 3.0, 10.0)]
FORMS += [Form(offset=offset) for offset in (0.1, 0.4)] + [Form(share=share) for share in (0.0, 0.1, 1.0)]
NUMBERS = [Form(directions=directions) for directions in (16, 32, 64, 128)]
Observed = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The near score of images, and what the layers see of them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root")
    parser.add_argument("--work", type=Path, help="folder for the runs, which stay; default: a temporary one")
    parser.add_argument("--directions", action="store_true")
    args = parser.parse_args()
    forms, problems, name, option = FORMS, PROBLEMS, "penalty", ""
    if args.directions:
        forms, problems, name, option = NUMBERS, PROBLEMS[::3][:2], "directions", " --directions"
    rows = []
    for source, split, partition in problems:
        left_out = LEFT_OUT.get(source, 2)
        one = Try(
            "pmal", source, "arpl", split, left_out, partition, "sample", "small", 12, 0, "", args.data_root
        )
        with contextlib.ExitStack() as stack:
            folder = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rows += measure(one, folder / one.problem, forms)
        print(f"{one.problem}: done", flush=True)
    manifest = describe_environment(torch.device("cpu"))
    command = f"python -m benchmarks.penalty --data-root DATA{option}"
    write_json(OUT / f"{name}.json", {"command": command, "rows": rows, "manifest": manifest})


def measure(one: Try, folder: Path, forms: list[Form]) -> list[dict]:
    """Return the figures of every form on one problem."""
    session, task = open_quiet_session(one), validation_task(one)
    pipeline.fit(one.config(), folder, session, task=task)
    model = load_model(folder / "model", session.device)
    shape = model.classifier.spec.image_shape
    named = {"train": task.train.at(evenly(len(task.train), FITTED_IMAGES)), "held out": task.held_out}
    named |= {"known": task.test.at(evenly(len(task.test), MOST))}
    named |= {"left out": task.unknown.at(evenly(len(task.unknown), MOST))}
    parts: dict[str, Part] = {name: open_part(name, part, shape, session) for name, part in named.items()}
    images = {name: part.images.images for name, part in parts.items()}
    images |= {name: make(images["known"][:300]) for name, make in MADE.items()}
    seen = {name: observe(model, pixels) for name, pixels in images.items()}
    held = model.calibration.of(model.rule.score), seen["held out"][1]
    seen["held out"] = held  # each by the scale of the other images
    return [{"problem": one.problem} | asdict(form) | figures(seen, form) for form in forms]


@torch.no_grad()
def observe(model: OpenSetModel, pixels: torch.Tensor) -> Observed:
    near, statistics = [], []
    for batch in torch.split(pixels, 256):
        z, logits, found = model.classifier.embed_observed(batch)
        near.append(model.scores(z, logits)[model.rule.score])
        statistics.append(dict(found))
    return torch.cat(near), {name: torch.cat([one[name] for one in statistics]) for name in statistics[0]}


def figures(seen: dict[str, Observed], form: Form) -> dict:
    """What is rejected at 95 % acceptance, and the AUROC of the classes left out."""
    training = {name: x.numpy() for name, x in seen["train"][1].items()}
    with mock.patch.multiple(of_layers, OFFSET=form.offset, SHARE=form.share):
        typicality = typicality_of(training, form.directions)
        both = {name: (near, typicality(found)) for name, (near, found) in seen.items() if name != "train"}

    def joint(scale: Penalty, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        above = ((far - scale.usual) / scale.spread - form.start).clamp(min=0.0)
        return near + scale.unit * form.weight * above**2

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
