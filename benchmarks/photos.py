"""Own photos: PMAL on the features of a frozen network, next to what people would use on the same features.

    python -m benchmarks.photos encoders --data-root DATA [--draws 3] [--encoders ...]
    python -m benchmarks.photos finetuned --data-root DATA [--draws 1]
    python -m benchmarks.photos curve --data-root DATA [--draws 3] [--limits ...]

Ten random classes of DATA/photos are known, ten unknown. Every encoder learns from all training images; the
curve is that of the first one with 5, 10, 20 and 40 of each class. Rivals, with thresholds from the same ten
folds: logistic regression by its largest logit, and the cosine to the fifth neighbor. Encoders that are
trained on the photos alone (`small`) have no such features, and so no rivals.

Times are those of the CPU, which other work on the machine does not change. `rejected at 95` is the share of
unknown images rejected by the threshold that accepts 95 % of the known test images, whatever the calibration
says. Rows of other encoders in the file stay, with the manifest of their own measurement. Writes to
benchmarks/results/photos.
"""

import argparse
import contextlib
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
from pmal._runtime.session import Session, open_session
from pmal.config import Resources, RunConfig, build, merge
from pmal.data.feeding.batches import ImageBatches
from pmal.data.feeding.parts import Part, image_shape
from pmal.data.samples import evenly
from pmal.data.sources.readers import open_test_samples
from pmal.data.splits.task import open_task
from pmal.defaults import complete_settings
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.inputs import run_inputs
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.calibration.thresholds import conformal_threshold
from pmal.rejection.model import OpenSetModel
from pmal.reporting.metrics import auroc, fpr_at_tpr
from pmal.run.run_folder import read_config

OUT = Path(__file__).parent / "results" / "photos"
ACCEPT, FOLDS, NEIGHBORS = 0.95, 10, 5
FAR, FAR_IMAGES = ("mnist", "svhn", "cifar10"), 100
"""Sets that have nothing to do with the photographs, and the number of images of each."""
Features = dict[str, tuple[np.ndarray, np.ndarray]]
"""Features and labels of each part of a run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("encoders", "curve", "finetuned"))
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--encoders", default="efficientnet_lite0,efficientnet_lite1")
    parser.add_argument("--work", type=Path, help="folder of the runs, which are then resumed")
    parser.add_argument("--limits", default="5,10,20,40")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    encoders, limits = args.encoders.split(","), [int(limit) for limit in args.limits.split(",")]
    curve = [(encoders[0], limit) for limit in limits]
    cells = curve if args.part == "curve" else [(encoder, 0) for encoder in encoders]
    manifest = describe_environment(torch.device("cpu"))  # before a file of it changes the tree
    rows, manifests = kept(args.part, cells)
    with contextlib.ExitStack() as stack:
        work = args.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for encoder, limit in cells:
            for draw in range(args.draws):
                if args.part == "finetuned":
                    rows += measure_finetuned(encoder, draw, args.data_root, work)
                else:
                    rows += measure(encoder, limit, draw, args.data_root, work)
                manifests[encoder] = manifest
                rows.sort(key=lambda row: (row["encoder"], row["limit"], row["draw"]))
                write_json(OUT / f"{args.part}.json", {"rows": rows, "manifests": manifests})
    print(f"{len(rows)} rows: {OUT / args.part}.json")


def measure(encoder: str, limit: int, draw: int, root: Path, work: Path) -> list[dict[str, Any]]:
    """Return the figures of PMAL, and of its rivals where the network is frozen, for one draw of classes."""
    run, session = work / f"{encoder}-{limit}-{draw}", open_session(Resources(device="cpu"), Lines())
    config, start, new = (
        configure(encoder, limit, draw, root / "photos"),
        time.process_time(),
        not run.exists(),
    )
    figures = pipeline.fit(config, run, session)
    spent = {"cpu_seconds": time.process_time() - start} if new else {}
    about = {"encoder": encoder, "limit": limit, "draw": draw}
    size = sum(file.stat().st_size for file in (run / "model").iterdir())
    parts = parts_of(run, root, session)
    model = load_model(run / "model", session.device)
    near = pmal_figures(figures, read_json(run / "model" / "model.json"))
    own = near | {"auroc far": far_auroc({name: decided(model, part) for name, part in parts.items()})}
    rows = [about | spent | {"megabytes": size / 1e6} | own]
    if encoder == "small":
        return rows
    features = {name: (_rows(part.images), part.samples.labels) for name, part in parts.items()}
    return rows + [about | row for row in (logistic(features), neighbors(features))]


def measure_finetuned(encoder: str, draw: int, root: Path, work: Path) -> list[dict[str, Any]]:
    """Return the figures of one run with fine-tuning of the last blocks, and of its frozen features."""
    run, session = work / f"finetuned-{encoder}-{draw}", open_session(Resources(device="cpu"), Lines())
    config, start = configure(encoder, 0, draw, root / "photos", "last"), time.perf_counter()
    new = not run.exists()
    figures = pipeline.fit(config, run, session)
    model = read_json(run / "model" / "model.json")
    seconds = time.perf_counter() - start if new else None  # a run that was resumed took longer
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


def parts_of(run: Path, root: Path, session: Session) -> dict[str, Part]:
    """Return each part of a run, and images of other sets as `far ...`."""
    config = read_config(run)
    task = open_task(config.data, None)
    inputs = run_inputs(config, image_shape(task.train, config.data), run, session)
    parts = inputs.open_parts(task, session)
    for name in FAR:
        samples = open_test_samples(name, root)
        parts[f"far {name}"] = inputs.open(name, samples.at(evenly(len(samples), FAR_IMAGES)), session)
    return parts


def decided(model: OpenSetModel, part: Part) -> np.ndarray:
    """Return the score that decides, of each image."""
    z_ND, logits_NK, far_N = embed_images(model.classifier, part.images, embed=model.embed_batch)
    return model.decision(z_ND, logits_NK, far_N).numpy()


def far_auroc(scores: dict[str, np.ndarray]) -> float:
    """Return the AUROC of known test images against those of other sets, from the scores of each part."""
    far = np.concatenate([scores[f"far {name}"] for name in FAR])
    return float(auroc(torch.from_numpy(scores["test"]), torch.from_numpy(far)))


def _rows(images: ImageBatches) -> np.ndarray:
    return next(images.stream([torch.arange(len(images))])).flatten(1).numpy()


def logistic(features: Features) -> dict[str, Any]:
    (train, labels), (test, truth) = features["train"], features["test"]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    folds = StratifiedKFold(min(FOLDS, np.bincount(labels).min()), shuffle=True, random_state=0)
    held_out = -cross_val_predict(model, train, labels, cv=folds, method="decision_function").max(axis=1)
    model.fit(train, labels)
    scores = {name: -model.decision_function(part).max(axis=1) for name, (part, _) in features.items()}
    return figures_of("logistic regression", held_out, scores, float((model.predict(test) == truth).mean()))


def neighbors(features: Features) -> dict[str, Any]:
    labels, truth = features["train"][1], features["test"][1]
    unit = {name: part / np.linalg.norm(part, axis=1, keepdims=True) for name, (part, _) in features.items()}
    own = unit["train"] @ unit["train"].T
    np.fill_diagonal(own, -np.inf)  # every image is held out from its own neighbors
    cosines = {name: rows @ unit["train"].T for name, rows in unit.items()}
    scores = {name: -np.sort(one, axis=1)[:, -NEIGHBORS] for name, one in cosines.items()}
    nearest = np.argsort(-cosines["test"], axis=1)[:, :NEIGHBORS]
    votes = np.array([np.bincount(labels[row]).argmax() for row in nearest])
    held_out = -np.sort(own, axis=1)[:, -NEIGHBORS]
    return figures_of("neighbors", held_out, scores, float((votes == truth).mean()))


def figures_of(
    method: str, held_out: np.ndarray, scores: dict[str, np.ndarray], accuracy: float
) -> dict[str, Any]:
    limit, known, unknown = conformal_threshold(held_out, ACCEPT).value, scores["test"], scores["unknown"]
    return {
        "method": method,
        "accuracy": accuracy,
        "auroc": float(auroc(torch.from_numpy(known), torch.from_numpy(unknown))),
        "auroc far": far_auroc(scores),
        "accepted": float((known <= limit).mean()),
        "rejected": float((unknown > limit).mean()),
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
