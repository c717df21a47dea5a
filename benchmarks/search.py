"""Settings compared without any test image: some known classes of a split play the unknown ones.

    python -m benchmarks.search cifar10 --splits 0,2,4 --unknown 2 --epochs 100 --jobs 6 \
        --try "" "optimization.temperature=0.1 optimization.margin=0" "encoder.options.dropout=0.2"

Of the training images of the split's known classes a fifth is kept for testing, as known or unknown ones.
Tries that differ in mining or the second training alone share their classifiers. --softmax names the lengths
of plain classifiers that stand beside them; each row says its passes per image. Writes one JSON for every
split into benchmarks/results/search/; --scores also keeps what every network says of every image, so that
scores can be compared without another training.
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pmal._runtime.files import make_folder, write_json
from pmal._runtime.processes.gpu_sharing import shared_gpu
from pmal.benchmark.grid import whole_numbers
from pmal.config import Resources, RunConfig, build, merge, parse_assignment, read_recipe

SECOND = ("mining.", "optimization.", "rejection.")
"""Settings that leave the classifiers as they are."""


@dataclass(frozen=True)
class Try:
    """A method with some settings on one validation problem."""

    method: str
    source: str
    family: str
    split: int
    unknown: int
    partition: int
    recipe: str
    encoder: str
    epochs: int
    seed: int
    settings: str
    data_root: str | None
    length: int = 0
    """Epochs of a plain classifier that stands beside the tries."""

    @property
    def problem(self) -> str:
        label = f"{self.source}-{self.family}{self.split}-{self.unknown}out{self.partition}"
        return f"{label}-{self.encoder}-{self.recipe}{self.epochs}-seed{self.seed}"

    @property
    def first(self) -> "Try":
        """What trains the classifiers that this one goes on from."""
        words = [word for word in self.settings.split() if not word.startswith(SECOND)]
        return dataclasses.replace(self, settings=" ".join(words))

    @property
    def name(self) -> str:
        length = [str(self.length)] if self.length else []
        words = [word.removeprefix("optimization.") for word in self.settings.split()]
        return "-".join([self.method, *length, *words]).replace("/", "_")  # the name of a file: 255 bytes

    def config(self) -> RunConfig:
        named = {
            "method": self.method,
            "seed": self.seed,
            "data": {"source": self.source, "family": self.family, "split": self.split},
            "encoder": {"name": self.encoder},
            "training": {"epochs": self.length or self.epochs},
        }
        words = map(parse_assignment, self.settings.split())
        return build(RunConfig, merge(read_recipe(self.recipe), named, *words))


def main() -> None:
    args = parse_arguments()
    work = args.work or Path(tempfile.mkdtemp())
    rows, failed = defaultdict(list), []
    with shared_gpu() as shared, executor(args.jobs) as pool:
        print(f"{args.jobs} at a time{', side by side on the GPU' if shared else ''}", flush=True)
        waiting = defaultdict(list)
        for one in all_tries(args):
            waiting[one.first].append(one)
        running = {pool.submit(prepare, first, work): first for first in waiting}
        lengths = itertools.product(args.softmax, {one.split: one for one in all_tries(args)}.values())
        for length, one in lengths:
            plain = dataclasses.replace(one, method="softmax", settings="", length=length)
            running[pool.submit(attempt, plain, work, args.scores)] = plain
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                one = running.pop(future)
                try:
                    found = future.result()
                except Exception as error:  # the other tries go on
                    failed.append(f"{one.problem} {one.name}: {error!r}")
                    print(failed[-1], file=sys.stderr, flush=True)
                    continue
                if found is None:
                    new = waiting.pop(one)
                    running |= {
                        pool.submit(attempt, next_one, work, args.scores): next_one for next_one in new
                    }
                    continue
                rows[one.problem].append(found)
                print(json.dumps(found), flush=True)
                write_rows(args.out, one.problem, rows[one.problem])
    if args.work is None:
        shutil.rmtree(work)
    sys.exit(1 if failed else 0)


def executor(jobs: int) -> ProcessPoolExecutor:
    # Spawned: a forked process could not use a GPU that this one has seen.
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def all_tries(args) -> list[Try]:
    return [
        Try("pmal", args.source, args.family, split, args.unknown, args.partition, args.recipe, args.encoder,
            args.epochs, args.seed, text, args.data_root)
        for split in whole_numbers(args.splits, "--splits")
        for text in args.tries
    ]  # fmt: skip


def prepare(first: Try, work: Path) -> None:
    """Train the classifiers of a kind of network and embed the training set: what its tries begin with."""
    from pmal import pipeline

    place, session = work / first.problem / first.name, open_quiet_session(first)
    if (place / "embeddings" / "1.json").exists():
        return
    config, task = first.config(), validation_task(first)
    for stage in ("classifiers", "embeddings"):
        pipeline.fit(config, place, session, only=stage, task=task)


def attempt(one: Try, work: Path, scores: Path | None) -> dict:
    """One setting, trained and measured."""
    from pmal import pipeline
    from pmal.benchmark.cells.passes import image_passes

    config, task, session = one.config(), validation_task(one), open_quiet_session(one)
    place = work / one.problem / f"try-{one.name}"
    begin = time.perf_counter()
    start = None
    if one.method == "pmal" and not place.exists():
        shutil.copytree(work / one.problem / one.first.name, place)
        start = "mining"
    metrics = pipeline.fit(config, place, session, start=start, task=task)
    if scores is not None:
        keep_scores(one, place, make_folder(scores), session)
    return {
        "method": one.method,
        "settings": one.settings,
        "epochs": config.training.epochs,
        "second_epochs": config.second_training.epochs if one.method == "pmal" else 0,
        "passes": image_passes(config, len(task.class_names)),
        "known": list(task.class_names),
        "accuracy": metrics["accuracy"]["value"],
        "auroc": of_scores(metrics, "auroc"),
        "oscr": of_scores(metrics, "oscr"),
        **({"first": figures(metrics["softmax"])} if "softmax" in metrics else {}),
        "seconds": time.perf_counter() - begin,
    }


def figures(metrics: dict) -> dict:
    return {"accuracy": metrics["accuracy"]["value"], "auroc": of_scores(metrics, "auroc")}


def of_scores(metrics: dict, figure: str) -> dict:
    return {name: row[figure]["value"] for name, row in metrics["scores"].items()}


def keep_scores(one: Try, place: Path, folder: Path, session) -> None:
    """What the network, its mirror image and its first classifiers say of every test image, as one .npz."""
    import torch

    from pmal.data.feeding.batches import ResidentImages
    from pmal.data.feeding.parts import open_part
    from pmal.ensemble.classifiers import load_classifiers
    from pmal.ensemble.embeddings import embed_images
    from pmal.rejection.bundle.saving import load_model
    from pmal.rejection.scores import class_distances, neighbor_score

    model, task = load_model(place / "model", session.device), validation_task(one)
    shape, arrays = model.classifier.spec.image_shape, {}
    for name, samples in (("known", task.test), ("unknown", task.unknown)):
        part = open_part("test", samples, shape, session)
        mirrored = ResidentImages(part.images.images.flip(3), session.device)
        arrays[f"{name}.labels"] = samples.labels
        arrays[f"{name}.embeddings"] = embed_images(model.classifier, part.images)[0].numpy()
        for view, images in (("plain", part.images), ("mirrored", mirrored)):
            z_ND, logits_NK = embed_images(model.classifier, images)
            arrays[f"{name}.{view}.logits"] = logits_NK.numpy()
            arrays[f"{name}.{view}.length"] = torch.linalg.vector_norm(z_ND, dim=1).numpy()
            if model.reference is not None:
                on_device = z_ND.to(session.device)
                arrays[f"{name}.{view}.distances"] = class_distances(on_device, model.reference).cpu().numpy()
                nearest = neighbor_score(on_device, model.reference.training_ND)
                arrays[f"{name}.{view}.neighbors"] = nearest.cpu().numpy()
        if one.method == "pmal":
            classifiers = load_classifiers(place / "classifiers", 2, task.class_names, session)
            for index, classifier in enumerate(classifiers):
                arrays[f"{name}.classifier{index}.logits"] = embed_images(classifier, part.images)[1].numpy()
    if model.reference is not None:
        arrays["training.embeddings"] = model.reference.training_ND[
            :: max(1, len(model.reference.training_ND) // 2000)
        ].cpu()
    half = {key for key in arrays if key.endswith("embeddings")}  # files that travel are small
    plain = {
        key: np.asarray(value).astype(np.float16 if key in half else np.float32)
        for key, value in arrays.items()
    }
    np.savez_compressed(folder / f"{one.problem}--{one.name}.npz", **plain)


def open_quiet_session(one: Try):
    from pmal._runtime.session import open_session

    return open_session(Resources(data_root=one.data_root))


def validation_task(one: Try):
    """The known training images alone, divided into known and unknown classes."""
    from pmal.data.sources.readers import open_source
    from pmal.data.splits.protocols import Split
    from pmal.data.splits.task import TEST_SHARE, choose_split, hold_out, make_task

    config = one.config()
    source = open_source(config.data.source, one.data_root)
    split = choose_split(source, config.data)
    train, rest = hold_out(source.train.of_classes(split.known), TEST_SHARE)
    classes = np.random.default_rng(one.partition).permutation(len(split.known))
    unknown, known = classes[: one.unknown], classes[one.unknown :]
    division = Split(tuple(sorted(known.tolist())), tuple(sorted(unknown.tolist())), "validation", 0)
    inner = dataclasses.replace(source, train=train, test=rest, foreign=None)
    return make_task(inner, division, config.data)


def write_rows(out: Path, problem: str, rows: list[dict]) -> None:
    from pmal._runtime.manifest import describe_environment
    from pmal._runtime.session import open_session

    about = {"command": f"python -m benchmarks.search {' '.join(sys.argv[1:])}", "rows": rows}
    manifest = describe_environment(open_session().device)
    write_json(make_folder(out) / f"{problem}.json", about | {"manifest": manifest})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--family", default="arpl")
    parser.add_argument("--splits", default="0")
    parser.add_argument("--unknown", type=int, default=2, help="known classes that play the unknown ones")
    parser.add_argument("--partition", type=int, default=0, help="seed of their choice")
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--encoder", default="oscri")
    parser.add_argument("--epochs", type=int, default=100, help="per classifier")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--try", dest="tries", nargs="+", default=[""], help="settings, separated by spaces")
    parser.add_argument("--softmax", type=int, nargs="*", default=[], help="epochs of plain classifiers")
    parser.add_argument("--jobs", type=int, default=1, help="tries at a time")
    parser.add_argument("--data-root")
    parser.add_argument("--work", type=Path, help="where runs are kept; default: deleted at the end")
    parser.add_argument("--scores", type=Path, help="folder for what every network says of every image")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search")
    return parser.parse_args()


if __name__ == "__main__":
    main()
