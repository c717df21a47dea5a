"""Do the fast steps learn what the plain ones do? Loss by epoch of the same training, step by step kind.

    python benchmarks/loss_curves.py cifar10 --epochs 20 --seeds 0 1 2

Each seed trains the first classifier of a run as it is written in float32 (`plain`), and as `pmal fit` does
it on this device (`fast`: bfloat16, compiled and captured on a GPU). Random numbers come in another order
once compiled, so the curves of one seed part; they agree if they part by no more than those of two seeds.
Accuracy and AUROC on the test images stand beside. Writes benchmarks/results/speed/loss-curves.json.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from pmal import pipeline
from pmal._engine import loop as training
from pmal._runtime.files import make_folder, read_events, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge, read_recipe

KINDS = ("plain", "fast")


@contextlib.contextmanager
def plain_steps() -> Iterator[None]:
    """Every step as it is written."""

    def eager(loop: Any, images: Any, labels: Any) -> Any:
        return loop.make_step(loop.objective)

    with mock.patch.object(training._Loop, "choose_step", eager):
        yield


def train_once(kind: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        "method": "softmax",
        "seed": seed,
        "data": {"source": args.source, "family": args.family, "split": args.split},
        "encoder": {"name": args.encoder},
        "training": {"epochs": args.epochs, "precision": "float32" if kind == "plain" else "auto"},
    }
    config = build(RunConfig, merge(read_recipe(args.recipe), chosen))
    session = open_session(Resources(device=args.device, data_root=args.data_root), Lines(every=20.0))
    # Also in a short training the compiled step is the one that is looked at.
    steps = plain_steps() if kind == "plain" else mock.patch.object(training, "COMPILE_SECONDS", 0)
    with tempfile.TemporaryDirectory() as folder, steps:
        metrics = pipeline.fit(config, Path(folder) / "run", session)
        log = read_events(Path(folder) / "run" / "log.jsonl")
    epochs = [event for event in log if "epoch" in event]
    return {
        "kind": kind,
        "seed": seed,
        "loss": [event["loss"] for event in epochs],
        "images_per_s": sorted(event["images_per_s"] for event in epochs)[len(epochs) // 2],
        "accuracy": metrics["accuracy"]["value"],
        "auroc": {name: found["auroc"]["value"] for name, found in metrics["scores"].items()},
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source")
    parser.add_argument("--family", default="arpl")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--encoder", default="oscri")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "speed")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    path = make_folder(args.out) / "loss-curves.json"
    about = {
        name: getattr(args, name) for name in ("source", "family", "split", "recipe", "encoder", "epochs")
    }
    device = open_session(Resources(device=args.device), Lines()).device
    found: dict[str, Any] = {"curves": {**about, "runs": []}, "manifest": describe_environment(device)}
    for seed in args.seeds:
        for kind in KINDS:
            found["curves"]["runs"].append(train_once(kind, seed, args))
            write_json(path, found)
            print(json.dumps(found["curves"]["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
