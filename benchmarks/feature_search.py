"""What decides on features of a frozen network, compared on known classes alone.

    python -m benchmarks.feature_search --data-root DATA [--problems 4]

Features are those of EfficientNet-Lite0 for training images of CIFAR-10 and TinyImageNet, and the 64 pixels
of scikit-learn's digits as they are. Half of the classes (six at least) make a problem: some of them are
known, the others play the unknown ones. No photograph has a part in it. Rows: the settings that were tried,
the score, and two rivals. Writes benchmarks/results/search/features.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmal import OpenSetClassifier, auroc
from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment
from pmal.data.decoding.fitting import fitting_reader
from pmal.data.samples import Samples
from pmal.data.sources.readers import open_source
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.creating import create_backbone

OUT = Path(__file__).parent / "results" / "search" / "features.json"
PER_CLASS = {"cifar10": 100, "tinyimagenet": 60}
MOST_CLASSES = 40
TRIED = {
    "width 128, rate 0.05, decay 0.0005": (128, 0.05, 5e-4),
    "width 512, rate 0.05, decay 0.0005": (512, 0.05, 5e-4),
    "width 512, rate 0.02, decay 0.01": (512, 0.02, 0.01),
}
Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=4)
    args = parser.parse_args()
    manifest, rows = describe_environment(torch.device("cpu")), []
    for name, (X, y) in sets(args.data_root).items():
        for number in range(args.problems):
            problem = draw(X, y, number)
            about = {"data": name, "problem": number}
            rows += [about | row for row in (*rivals(problem), *tried(problem))]
            write_json(OUT, {"rows": rows, "manifest": manifest})
    print(f"{len(rows)} rows: {OUT}")


def sets(root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    backbone = create_backbone("efficientnet_lite0")
    digits = load_digits()
    found = {"digits": (digits.data.astype(np.float32), digits.target)}
    for name, count in PER_CLASS.items():
        samples = some(open_source(name, root).train, count)
        found[name] = embed(backbone, samples), samples.labels
    return found


def some(samples: Samples, count: int) -> Samples:
    """Return the first images of each class, of not too many classes."""
    classes = np.unique(samples.labels)[:MOST_CLASSES]
    chosen = [np.flatnonzero(samples.labels == label)[:count] for label in classes]
    return samples.at(np.concatenate(chosen))


@torch.no_grad()
def embed(backbone: Backbone, samples: Samples, batch: int = 64) -> np.ndarray:
    read, blocks = fitting_reader(samples, backbone.image_shape), []
    for start in range(0, len(samples), batch):
        positions = range(start, min(start + batch, len(samples)))
        pixels = torch.from_numpy(np.stack([read(position) for position in positions]))
        blocks.append(backbone(pixels.permute(0, 3, 1, 2)).numpy())
    return np.concatenate(blocks)


def draw(X: np.ndarray, y: np.ndarray, number: int) -> Problem:
    """Return training samples and their classes, known test samples, and unknown ones."""
    rng = np.random.default_rng(number)
    classes = rng.permutation(np.unique(y))[: max(6, len(np.unique(y)) // 2)]
    known, unknown = np.split(classes, [round(0.6 * len(classes))])
    members = [rng.permutation(np.flatnonzero(y == label))[:120] for label in known]
    train, test = (np.concatenate([m[part(m)] for m in members]) for part in (first_two_thirds, last_third))
    foreign = np.concatenate([np.flatnonzero(y == label)[:120] for label in unknown])
    return X[train], y[train], X[test], X[foreign]


def first_two_thirds(members: np.ndarray) -> slice:
    return slice(len(members) * 2 // 3)


def last_third(members: np.ndarray) -> slice:
    return slice(len(members) * 2 // 3, None)


def rivals(problem: Problem) -> list[dict[str, Any]]:
    train, labels, test, unknown = problem
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(train, labels)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test, unknown)]
    cosine = [np.sort(x @ unit[0].T, axis=1)[:, -5] for x in unit[1:]]
    logit = [model.decision_function(x).max(axis=1) for x in (test, unknown)]
    return [
        {"settings": "logistic regression", "auroc": {"logit": area(-logit[0], -logit[1])}},
        {"settings": "cosine of the features", "auroc": {"neighbors": area(-cosine[0], -cosine[1])}},
    ]


def tried(problem: Problem) -> list[dict[str, Any]]:
    train, labels, test, unknown = problem
    rows = []
    for name, (width, rate, decay) in TRIED.items():
        settings = {
            "encoder": {"options": {"width": width}},
            "training": {"learning_rate": rate, "weight_decay": decay},
        }
        model = OpenSetClassifier(
            encoder="precomputed", held_out=0.1, settings=settings, random_state=0, device="cpu"
        ).fit(train, labels)
        known, foreign = (model.model_.scores(*model._embed(x)) for x in (test, unknown))
        found = {score: area(known[score].numpy(), foreign[score].numpy()) for score in known}
        rows.append({"settings": name, "auroc": found})
    return rows


def area(known: np.ndarray, unknown: np.ndarray) -> float:
    return float(auroc(torch.from_numpy(known), torch.from_numpy(unknown)))


if __name__ == "__main__":
    main()
