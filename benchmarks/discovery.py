"""What unknown images are found to be: groups of the rejected ones against their true classes.

    python -m benchmarks.discovery choose --data-root DATA --cache FOLDER
    python -m benchmarks.discovery measure --data-root DATA --cache FOLDER

Images are embedded by EfficientNet-Lite0, frozen; PMAL and softmax are fitted on the features of the known
classes. The pile is all images of the unknown classes. `choose` compares settings of HDBSCAN on known classes
alone: a third of them is learned, and the others are the pile. `measure` then takes the unknown classes, and
compares with k-means, which is told the true number of classes. Accuracy is that of the best pairing of
groups and classes (Hungarian); leftovers count as wrong in it, and as a group of their own in the adjusted
Rand index.
Writes benchmarks/results/discovery/choose.json and measure.json.
"""

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from benchmarks.feature_search import embed
from pmal import OpenSetClassifier
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.data.samples import Samples
from pmal.data.sources.readers import open_source
from pmal.data.splits.protocols import get_split, random_split
from pmal.encoders.pretrained.creating import create_backbone
from pmal.rejection.open_world.grouping import LEFT, group_embeddings, unit_rows

OUT = Path(__file__).parent / "results" / "discovery"
PER_CLASS, MOST_UNKNOWN = 60, 20
"""Images of a class, and unknown classes, at most: all of it takes minutes on a CPU."""
DRAWS = {"photos": 3, "cifar10": 3, "tinyimagenet": 1}
Data = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("choose", "measure"))
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="Folder to keep the features in.")
    args = parser.parse_args()
    manifest, rows = describe_environment(torch.device("cpu")), []
    OUT.mkdir(parents=True, exist_ok=True)
    for name, draws in DRAWS.items():
        for draw in range(draws):
            known, unknown = problem(name, draw, args.data_root, args.cache)
            found = choose(known) if args.part == "choose" else measure(known, unknown)
            rows += [{"data": name, "draw": draw} | row for row in found]
            write_json(OUT / f"{args.part}.json", {"rows": rows, "manifest": manifest})
    print(f"{len(rows)} rows: {OUT / args.part}.json")


def problem(name: str, draw: int, root: Path, cache: Path) -> tuple[Data, Data]:
    """Return features and classes of training images of known classes, and of test images of unknown ones."""
    split = random_split(20, 10, draw) if name == "photos" else get_split(name, "arpl", draw)
    known, unknown = split.known, split.unknown[:MOST_UNKNOWN]
    path = cache / f"{name}.npz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        source = open_source(str(root / "photos") if name == "photos" else name, root)
        taken = (known, unknown) if name == "tinyimagenet" else (range(len(source.train.class_names)),) * 2
        np.savez(path, **embedded("train", source.train, taken[0]))
        if name != "photos":
            np.savez(path.with_suffix(".test.npz"), **embedded("test", source.test, taken[1]))
    train = load(path)
    return of(train, known), of(train if name == "photos" else load(path.with_suffix(".test.npz")), unknown)


def embedded(part: str, samples: Samples, classes: Iterable[int]) -> dict[str, np.ndarray]:
    chosen = samples.at(np.concatenate([np.flatnonzero(samples.labels == k)[:PER_CLASS] for k in classes]))
    print(f"{part}: {len(chosen):,} images", flush=True)
    return {"features": embed(create_backbone("efficientnet_lite0"), chosen), "labels": chosen.labels}


def load(path: Path) -> Data:
    with np.load(path) as kept:
        return kept["features"], kept["labels"]


def of(data: Data, classes: Iterable[int]) -> Data:
    """Return the samples of these classes."""
    features, labels = data
    chosen = np.isin(labels, list(classes))
    return features[chosen], labels[chosen]


def choose(known: Data) -> Iterator[dict[str, Any]]:
    """Yield what each setting finds where a third of the known classes are known."""
    classes = np.random.default_rng(0).permutation(np.unique(known[1]))
    pile = of(known, classes[len(classes) // 3 :])
    for space, z_ND in spaces(of(known, classes[: len(classes) // 3]), pile[0]).items():
        for divisor, *settings in itertools.product((1, 2, 3), (0, 8, 16, 32), (1, 3, 5), ("eom", "leaf")):
            named = dict(zip(("dimensions", "neighbors", "cut"), settings, strict=True))
            smallest = max(5, round(math.sqrt(len(z_ND)) / divisor))
            found = group_embeddings(z_ND, smallest, **named)
            yield {"space": space, "divisor": divisor, **named, **figures(found, pile[1])}


def measure(known: Data, unknown: Data) -> Iterator[dict[str, Any]]:
    """Yield what is found among the unknown classes, and what k-means finds that is told their number."""
    features, truth = unknown
    count = len(np.unique(truth))
    for space, z_ND in spaces(known, features).items():
        means = KMeans(count, n_init=10, random_state=0).fit_predict(unit_rows(z_ND))
        found = {"hdbscan": group_embeddings(z_ND), "k-means": means}
        for method, labels in found.items():
            yield {"space": space, "method": method, "classes": count, **figures(labels, truth)}


def spaces(known: Data, pile: np.ndarray) -> dict[str, np.ndarray]:
    """Return the embeddings of a pile: as pretrained, and by two methods on the features of known classes."""
    found = {"pretrained": pile}
    for method in ("pmal", "softmax"):
        model = OpenSetClassifier(method, "precomputed", held_out=0.1, random_state=0, device="cpu")
        found[method] = model.fit(*known).transform(pile)
    return found


def figures(found: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    left = found == LEFT
    sure = adjusted_rand_score(truth[~left], found[~left]) if (~left).any() else None
    return {
        "samples": len(truth),
        "groups": len(np.unique(found[~left])),
        "left": float(left.mean()),
        "accuracy": paired_accuracy(found, truth),
        "rand": float(adjusted_rand_score(truth, found)),
        "rand_without_left": None if sure is None else float(sure),
    }


def paired_accuracy(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of samples in the group that stands for their class; leftovers are wrong."""
    table = np.zeros((max(found.max(initial=-1) + 1, 1), truth.max() + 1), np.int64)
    np.add.at(table, (found[found != LEFT], truth[found != LEFT]), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(truth))


if __name__ == "__main__":
    main()
