"""A method on published splits: softmax, the row that every other method stands beside, or pmal.

    python benchmarks/open_set.py cifar10 --method softmax --splits 0 1 2 3 4 --recipe strong --epochs 100

Writes one JSON per split (metrics, manifest, speed) into benchmarks/results/METHOD/.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

from pmal import pipeline
from pmal._runtime.files import make_folder, read_json, write_json
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge, parse_assignment, read_recipe
from pmal.reporting.tables import run_table


def main() -> None:
    args = parse_arguments()
    session = open_session(Resources(data_root=args.data_root), Lines(every=20.0))
    for split in args.splits:
        data = {"source": args.source, "family": args.family, "split": split}
        training = {"epochs": args.epochs} if args.epochs else {}
        chosen = {
            "method": args.method,
            "seed": args.seed,
            "data": data,
            "encoder": {"name": args.encoder},
            "training": training,
        }
        others = [parse_assignment(text) for text in args.set]
        config = build(RunConfig, merge(read_recipe(args.recipe), chosen, *others))
        result = run(config, args.recipe, session)
        result["settings"] = sorted(args.set)
        result["command"] = " ".join(
            f"python benchmarks/open_set.py {args.source} --method {args.method} --family {args.family} "
            f"--splits {split} "
            f"--recipe {args.recipe} --encoder {args.encoder} --epochs {result['about']['epochs']} "
            f"--seed {args.seed}".split()
            + [f"--set {text}" for text in args.set]
        )
        name = f"{args.source}-{args.family}{split}-{args.encoder}-{args.recipe}{result['about']['epochs']}"
        name += "".join(f"-{text.partition('.')[2].replace('=', '')}" for text in sorted(args.set))
        write_json(make_folder(args.out / args.method) / f"{name}-seed{args.seed}.json", result)
        print(run_table(result), flush=True)


def run(config, recipe, session):
    """One run in a temporary folder; what is worth keeping as one JSON."""
    folder = Path(tempfile.mkdtemp())
    try:
        start = time.perf_counter()
        metrics = pipeline.fit(config, folder / "run", session)
        seconds = time.perf_counter() - start
        manifest = {k: v for k, v in read_json(folder / "run" / "manifest.json").items() if k != "sha256"}
        log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(folder)
    speeds = sorted(event["images_per_s"] for event in log if "epoch" in event)
    return {
        **metrics,
        "recipe": recipe,
        "seconds": seconds,
        "images_per_s_median": speeds[len(speeds) // 2],
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if session.device.type == "cuda" else None,
        "manifest": manifest,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--method", default="softmax")
    parser.add_argument("--family", default="arpl")
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--encoder", default="oscri")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="any other setting: section.field=value")
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
