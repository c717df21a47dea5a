"""Own photos: PMAL on the features of a frozen network, next to what people would use on the same features.

    python -m benchmarks.photos encoders --data-root DATA [--draws 3] [--encoders ...]
    python -m benchmarks.photos finetuned --data-root DATA [--draws 1]
    python -m benchmarks.photos curve --data-root DATA [--draws 3] [--limits ...]

Ten random classes of DATA/photos are known, ten unknown. Every encoder learns from all training images; the
curve is that of the first one with 5, 10, 20 and 40 of each class. Rivals, with thresholds from the same ten
folds: logistic regression by its largest logit, and the cosine to the fifth neighbor. Encoders that are
trained on the photos alone (`small`) have no such features, and so no rivals.

Images are embedded once for each encoder, in its first run. `rejected at 95` is the share of unknown images
rejected by the threshold that accepts 95 % of the known test images, whatever the calibration says. Rows of
other encoders in the file stay, with the manifest of their own measurement. Writes to
benchmarks/results/photos.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pmal import pipeline
from pmal._runtime.files import read_json, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge
from pmal.data.feeding.batches import ImageBatches
from pmal.data.feeding.parts import image_shape
from pmal.data.splits.task import open_task
from pmal.defaults import complete_settings
from pmal.ensemble.inputs import FEATURES, run_inputs
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.reporting.metrics import auroc, fpr_at_tpr
from pmal.run.run_folder import read_config

OUT = Path(__file__).parent / "results" / "photos"
ACCEPT, FOLDS, NEIGHBORS = 0.95, 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("encoders", "curve", "finetuned"))
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--encoders", default="efficientnet_lite0,efficientnet_lite1")
    parser.add_argument("--limits", default="5,10,20,40")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    encoders, limits = args.encoders.split(","), [int(limit) for limit in args.limits.split(",")]
    curve = [(encoders[0], limit) for limit in limits]
    cells = curve if args.part == "curve" else [(encoder, 0) for encoder in encoders]
    manifest = describe_environment(torch.device("cpu"))  # before a file of it changes the tree
    rows, manifests = kept(args.part, cells)
    with tempfile.TemporaryDirectory() as folder:
        for encoder, limit in cells:
            for draw in range(args.draws):
                if args.part == "finetuned":
                    rows += measure_finetuned(encoder, draw, args.data_root / "photos", Path(folder))
                else:
                    rows += measure(encoder, limit, draw, args.data_root / "photos", Path(folder))
                manifests[encoder] = manifest
                write_json(OUT / f"{args.part}.json", {"rows": rows, "manifests": manifests})
    print(f"{len(rows)} rows: {OUT / args.part}.json")


def measure(encoder: str, limit: int, draw: int, photos: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of PMAL, and of its rivals where the network is frozen, for one draw of classes."""
    run = folder / f"{encoder}-{limit}-{draw}"
    session = open_session(Resources(device="cpu"), Lines())
    embedded = sorted(folder.glob(f"{encoder}-*/{FEATURES}*"))[
        :2
    ]  # of the first run: a table and its tensors
    run.mkdir()
    for file in embedded:
        shutil.copy(file, run)
    config, start = configure(encoder, limit, draw, photos), time.perf_counter()
    figures = pipeline.fit(config, run, session)
    about = {"encoder": encoder, "limit": limit, "draw": draw, "seconds": time.perf_counter() - start}
    rows = [about | pmal_figures(figures, read_json(run / "model" / "model.json"))]
    if encoder == "small":
        return rows
    features = features_of(run, session)
    return rows + [about | {"seconds": None} | row for row in (logistic(features), neighbors(features))]


def measure_finetuned(encoder: str, draw: int, photos: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of one run with fine-tuning of the last blocks, and of its frozen features."""
    run, session = folder / f"finetuned-{encoder}-{draw}", open_session(Resources(device="cpu"), Lines())
    config, start = configure(encoder, 0, draw, photos, "last"), time.perf_counter()
    figures = pipeline.fit(config, run, session)
    model, seconds = read_json(run / "model" / "model.json"), time.perf_counter() - start
    about = {"encoder": encoder, "limit": 0, "draw": draw}
    return [
        about | {"seconds": None, "features": "frozen"} | pmal_figures(figures["frozen"], model),
        about | {"seconds": seconds, "features": "fine-tuned, last"} | pmal_figures(figures, model),
    ]


def configure(encoder: str, limit: int, draw: int, photos: Path, finetune: str = "none") -> RunConfig:
    data = {"source": str(photos), "family": "random", "num_known": 10, "split": draw, "limit": limit}
    given = {"data": data, "encoder": {"name": encoder, "finetune": finetune}}
    settings, _ = complete_settings(given, None, None, "cpu")
    return build(RunConfig, merge(settings))


def pmal_figures(figures: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return the figures by the score that decides, the penalty in it."""
    scores, threshold = figures["scores"], figures["decision"]
    decided = scores.get("decision", scores[model["rule"]["score"]])
    return {
        "method": "pmal",
        "accuracy": figures["accuracy"]["value"],
        "auroc": decided["auroc"]["value"],
        "accepted": threshold["known_accepted"],
        "rejected": threshold["unknown_rejected"],
        "rejected at 95": 1 - decided["fpr95"]["value"],
        "scores": {name: one["auroc"]["value"] for name, one in scores.items()},
    }


def features_of(run: Path, session: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return features and labels of each part of a run."""
    config = read_config(run)
    task = open_task(config.data, None)
    inputs = run_inputs(config, image_shape(task.train, config.data), run, session)
    parts = inputs.open_parts(task, session)
    return {name: (_rows(part.images), part.samples.labels) for name, part in parts.items()}


def _rows(images: ImageBatches) -> np.ndarray:
    return next(images.stream([torch.arange(len(images))])).flatten(1).numpy()


def logistic(features: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    (train, labels), (test, truth), (unknown, _) = (features[name] for name in ("train", "test", "unknown"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    folds = StratifiedKFold(min(FOLDS, np.bincount(labels).min()), shuffle=True, random_state=0)
    held_out = -cross_val_predict(model, train, labels, cv=folds, method="decision_function").max(axis=1)
    model.fit(train, labels)
    scores = [-model.decision_function(part).max(axis=1) for part in (test, unknown)]
    return figures_of("logistic regression", held_out, *scores, float((model.predict(test) == truth).mean()))


def neighbors(features: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    (train, labels), (test, truth), (unknown, _) = (features[name] for name in ("train", "test", "unknown"))
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (train, test, unknown)]
    own = unit[0] @ unit[0].T
    np.fill_diagonal(own, -np.inf)  # every image is held out from its own neighbors
    cosines = [own, unit[1] @ unit[0].T, unit[2] @ unit[0].T]
    scores = [-np.sort(one, axis=1)[:, -NEIGHBORS] for one in cosines]
    nearest = np.argsort(-cosines[1], axis=1)[:, :NEIGHBORS]
    votes = np.array([np.bincount(labels[row]).argmax() for row in nearest])
    return figures_of("neighbors", *scores, float((votes == truth).mean()))


def figures_of(
    method: str, held_out: np.ndarray, known: np.ndarray, unknown: np.ndarray, accuracy: float
) -> dict[str, Any]:
    limit = conformal_threshold(held_out, ACCEPT).value
    return {
        "method": method,
        "accuracy": accuracy,
        "auroc": float(auroc(torch.from_numpy(known), torch.from_numpy(unknown))),
        "accepted": float((known < limit).mean()),
        "rejected": float((unknown >= limit).mean()),
        "rejected at 95": 1 - float(fpr_at_tpr(torch.from_numpy(known), torch.from_numpy(unknown), ACCEPT)),
    }


def kept(part: str, cells: list[tuple[str, int]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows that are not measured again, and the manifest of each encoder in the file."""
    file = OUT / f"{part}.json"
    content = read_json(file) if file.is_file() else {"rows": [], "manifests": {}}
    rows = [row for row in content["rows"] if (row["encoder"], row["limit"]) not in cells]
    return rows, content["manifests"]


if __name__ == "__main__":
    main()
