"""OpenSetClassifier on vectors, beside logistic regression and neighbors: figures of docs/estimator.md.

    python benchmarks/precomputed.py [--data-root DATA] [--draws 5]

Digits (8 x 8 pixels as 64 numbers, from scikit-learn) and, with a data root, MNIST (64 principal components
of 6,000 images). Each draw makes 6 of the 10 classes known; a seventh is added later from 60 samples.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmal import OpenSetClassifier, auroc
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.data.sources.readers import open_source
from pmal.rejection.scores import neighbor_score


class Draw(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    known_X: np.ndarray
    known_y: np.ndarray
    unknown_X: np.ndarray
    """Of the four other classes."""
    new_X: np.ndarray
    """60 training samples of one of them."""
    new_test_X: np.ndarray
    strange_X: np.ndarray
    """Of the last three."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "precomputed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name, *parts in problems(args.data_root):
        rows[name] = {}
        draws = [draw(*parts, seed) for seed in range(args.draws)]
        for row in (logistic_regression, neighbors, softmax, pmal, new_class):
            found = [row(one, seed) for seed, one in enumerate(draws)]
            means = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
            rows[name][row.__name__] = means
            print(
                f"{name:8s} {row.__name__:20s}",
                "  ".join(f"{k} {v:.3f}" for k, v in means.items()),
                flush=True,
            )
    command = f"python benchmarks/precomputed.py --data-root DATA --draws {args.draws}"
    manifest = describe_environment(torch.device("cpu"))
    write_json(make_folder(args.out) / "cpu.json", {"command": command, "rows": rows, "manifest": manifest})


def problems(data_root):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[: 2 * len(X) // 3], order[2 * len(X) // 3 :]
    yield "digits", X[train], y[train], X[test], y[test]
    if data_root:
        source, random = open_source("mnist", data_root), np.random.default_rng(0)
        parts = [p.at(random.permutation(len(p))[:n]) for p, n in ((source.train, 6000), (source.test, 3000))]
        pixels = [load_images(p, ImageShape(28, 1)).images.flatten(1).numpy() / 255 for p in parts]
        pca = PCA(64, random_state=0).fit(pixels[0])
        train, test = (pca.transform(part) for part in pixels)
        yield "MNIST, 64 principal components", train, parts[0].labels, test, parts[1].labels


def draw(X, y, test_X, test_y, seed):
    classes = np.random.default_rng(seed).permutation(10)
    known, new, strange = classes[:6], classes[6], classes[7:]
    learn, ask = np.isin(y, known), np.isin(test_y, known)
    return Draw(
        X[learn],
        y[learn],
        test_X[ask],
        test_y[ask],
        test_X[~ask],
        X[y == new][:60],
        test_X[test_y == new],
        test_X[np.isin(test_y, strange)],
    )


def logistic_regression(d, seed):
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(d.X, d.y)
    known, unknown = (-model.decision_function(x).max(axis=1) for x in (d.known_X, d.unknown_X))
    return {"accuracy": model.score(d.known_X, d.known_y), "logit": float(auroc(known, unknown))}


def neighbors(d, seed):
    """Of the vectors as they are, standardized."""
    scale = StandardScaler().fit(d.X)
    bank, known, unknown = (torch.from_numpy(scale.transform(x)) for x in (d.X, d.known_X, d.unknown_X))
    return {"neighbors": float(auroc(neighbor_score(known, bank), neighbor_score(unknown, bank)))}


def softmax(d, seed):
    return measure(OpenSetClassifier("softmax", "precomputed", random_state=seed, device="cpu"), d)


def pmal(d, seed):
    return measure(OpenSetClassifier("pmal", "precomputed", random_state=seed, device="cpu"), d)


def measure(model, d):
    start = time.perf_counter()
    model.fit(d.X, d.y)
    seconds = time.perf_counter() - start
    known, unknown = (model.model_.scores(*model._embed(x)) for x in (d.known_X, d.unknown_X))
    found = {"accuracy": np.mean(model.classes_[model.predict_proba(d.known_X).argmax(axis=1)] == d.known_y)}
    found |= {name: float(auroc(known[name], unknown[name])) for name in known}
    found |= {
        "accepted": np.mean(model.predict(d.known_X) != -1),
        "rejected": np.mean(model.predict(d.unknown_X) == -1),
    }
    return found | {"seconds": seconds}


def new_class(d, seed):
    model = OpenSetClassifier(encoder="precomputed", random_state=seed, device="cpu").fit(d.X, d.y)
    model.add_class(d.new_X, 99)
    parts = {"found": d.new_test_X, "of known": d.known_X, "of unknown": d.strange_X}
    return {name: np.mean(model.predict(x) == 99) for name, x in parts.items()}


if __name__ == "__main__":
    main()
