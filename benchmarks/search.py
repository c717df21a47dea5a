"""Settings compared without any test image: some known classes of a split play the unknown ones.

    python benchmarks/search.py cifar10 --split 0 --unknown 2 --epochs 40 \
        --try "" "optimization.weight=2 optimization.margin=0.8" "encoder.projection=linear"

Of the training images of the split's known classes a fifth is kept for testing, as known or unknown ones. A
setting that concerns the second training alone shares the classifiers of the others. Softmax of equal length
stands beside every kind of network. Writes one JSON into benchmarks/results/search/.
"""

import argparse
import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from pmal import pipeline
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge, parse_assignment, read_recipe
from pmal.data.parts import open_part
from pmal.data.protocols import Split
from pmal.data.sources.registry import open_source
from pmal.data.task import TEST_SHARE, Task, choose_split, hold_out, make_task
from pmal.ensemble.embeddings import embed_images
from pmal.rejection.scores import ScoreScale, combined_score, unknown_scores
from pmal.reporting.metrics import auroc
from pmal.serving.bundle import load_model

SECOND = ("optimization.", "rejection.")
"""Settings that leave the classifiers as they are."""


def main() -> None:
    args = parse_arguments()
    session = open_session(Resources(data_root=args.data_root), Lines(every=60.0))
    base = {
        "seed": args.seed,
        "data": {"source": args.source, "family": args.family, "split": args.split},
        "encoder": {"name": args.encoder},
        "training": {"epochs": args.epochs},
    }
    folder, rows = Path(tempfile.mkdtemp()), []
    label = f"{args.source}-{args.family}{args.split}-{args.unknown}out{args.partition}"
    out = make_folder(args.out) / f"{label}-{args.encoder}-{args.recipe}{args.epochs}-seed{args.seed}.json"
    tries = [("pmal", text) for text in args.tries]
    networks = dict.fromkeys(" ".join(of_first(text)) for text in args.tries)
    tries += [("softmax", text) for text in networks]
    try:
        for method, text in tries:
            rows.append(attempt(method, text, base, args, folder, session))
            print(json.dumps(rows[-1]), flush=True)
            manifest = describe_environment(session.device)
            about = {"command": command(args), "rows": rows, "manifest": manifest}
            write_json(out, about)
    finally:
        shutil.rmtree(folder)


def attempt(method, text, base, args, folder, session):
    """One setting, trained and measured."""
    settings = merge(read_recipe(args.recipe), base, *map(parse_assignment, text.split()))
    config = build(RunConfig, settings | {"method": method})
    if method == "softmax":  # as long as both trainings together
        training = dataclasses.replace(config.training, epochs=2 * config.training.epochs)
        config = dataclasses.replace(config, training=training)
    place = folder / "-".join([method, *of_first(text)]).replace("/", "_")
    begin = time.perf_counter()
    start = "optimization" if method == "pmal" and place.exists() else None
    metrics = pipeline.fit(config, place, session, start=start, task=validation_task(config, args))
    combined = combinations(place, config, args, session) if "combined" in metrics["scores"] else {}
    return {
        "method": method,
        "settings": text,
        "epochs": config.training.epochs,
        "known": list(validation_task(config, args).class_names),
        "accuracy": metrics["accuracy"]["value"],
        "auroc": {name: row["auroc"]["value"] for name, row in metrics["scores"].items()},
        "oscr": {name: row["oscr"]["value"] for name, row in metrics["scores"].items()},
        "combined": combined,
        "seconds": time.perf_counter() - begin,
    }


def combinations(place, config, args, session):
    """AUROC of the combined score, made of any two or three scores."""
    model, task = load_model(place / "model", session.device), validation_task(config, args)
    shape = model.classifier.spec.image_shape
    parts = [open_part("test", part, shape, session) for part in (task.test, task.unknown)]
    embedded = [embed_images(model.classifier, part.images) for part in parts]
    known, unknown = (unknown_scores(*one, model.reference) for one in embedded)
    found = {}
    for names in (c for n in (2, 3) for c in itertools.combinations(known, n)):
        scale = ScoreScale.fit({name: model.calibration.scores[name][::2] for name in names})
        found["+".join(names)] = float(auroc(*(combined_score(part, scale) for part in (known, unknown))))
    return found


def validation_task(config, args) -> Task:
    """The known training images alone, divided into known and unknown classes."""
    source = open_source(config.data.source, args.data_root)
    split = choose_split(source, config.data)
    train, rest = hold_out(source.train.of_classes(split.known), TEST_SHARE)
    classes = np.random.default_rng(args.partition).permutation(len(split.known))
    unknown, known = classes[: args.unknown], classes[args.unknown :]
    division = Split(tuple(sorted(known.tolist())), tuple(sorted(unknown.tolist())), "validation", 0)
    inner = dataclasses.replace(source, train=train, test=rest, foreign=None)
    return make_task(inner, division, config.data)


def of_first(text: str) -> list[str]:
    """The settings that concern the first training."""
    return [word for word in text.split() if not word.startswith(SECOND)]


def command(args) -> str:
    tries = " ".join(f'"{text}"' for text in args.tries)
    return (
        f"python benchmarks/search.py {args.source} --family {args.family} --split {args.split} "
        f"--unknown {args.unknown} --partition {args.partition} --recipe {args.recipe} "
        f"--encoder {args.encoder} --epochs {args.epochs} --seed {args.seed} --try {tries}"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--family", default="arpl")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--unknown", type=int, default=2, help="known classes that play the unknown ones")
    parser.add_argument("--partition", type=int, default=0, help="seed of their choice")
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--encoder", default="oscri")
    parser.add_argument("--epochs", type=int, default=40, help="per training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--try", dest="tries", nargs="+", default=[""], help="settings, separated by spaces")
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search")
    return parser.parse_args()


if __name__ == "__main__":
    main()
