"""Does the distance reject better with more prototypes at inference than in training?

    python benchmarks/inference_prototypes.py RUN... [--per-class 10 20 50 100]

For finished pmal runs (of `pmal fit`, or `pmal benchmark --keep`): prototypes are mined again from the run's
embeddings, more of them (the first ones are those of the training, because Algorithm 1 adds one after
another), and embedded by the final network. AUROC of the smallest distance, by the attended set and by the
nearest prototype, beside that of `neighbors`.
Writes one JSON into benchmarks/results/prototypes/.
"""

import argparse
import json
from pathlib import Path

from pmal._engine.loop import training_set
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import open_session
from pmal._runtime.tensors import load_tensors
from pmal.config import Resources
from pmal.data.feeding.parts import open_part
from pmal.data.splits.task import open_task
from pmal.ensemble.embeddings import embed_images
from pmal.mining.miner import mine_prototypes
from pmal.optimization.learner import embed_prototypes
from pmal.optimization.training import PrototypeTrainingSet
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.scores import Reference, unknown_scores
from pmal.reporting.about import describe
from pmal.reporting.metrics import auroc
from pmal.run.run_folder import read_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--per-class", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "prototypes")
    args = parser.parse_args()
    for run in args.runs:
        result = measure(run, args)
        print(json.dumps(result["rows"]), flush=True)
        write_json(make_folder(args.out) / f"{run.name}.json", result)


def measure(run, args):
    session, config = open_session(Resources(data_root=args.data_root)), read_config(run)
    task = open_task(config.data, args.data_root)
    model = load_model(run / "model", session.device)
    shape = model.classifier.spec.image_shape
    train, test, unknown = (
        open_part(n, getattr(task, n), shape, session) for n in ("train", "test", "unknown")
    )
    data = training_set(train, session)
    embedded = [embed_images(model.classifier, part.images) for part in (test, unknown)]
    spaces = [load_tensors(run / "embeddings" / str(u))[0] for u in range(config.classifiers)]
    spaces = [(space["z"], space["weight"], space["bias"]) for space in spaces]
    rows = []
    for count in args.per_class:
        mined = mine_prototypes(
            spaces,
            train.samples.labels,
            per_class=count,
            epsilon=config.mining.epsilon,
            ids=train.samples.ids,
        )
        images = PrototypeTrainingSet(data.images, data.labels, data.ids, mined).prototype_images()
        table_KTD = embed_prototypes(model.classifier, images, mined.mask)
        row = {"per_class": count, "found": len(mined)}
        for distance in ("point-to-set", "nearest"):
            reference = Reference(table_KTD, mined.mask, distance, model.reference.training_ND)
            known, others = (unknown_scores(z, logits, reference) for z, logits in embedded)
            row[distance] = float(auroc(known["distance"], others["distance"]))
            row["neighbors"] = float(auroc(known["neighbors"], others["neighbors"]))
        rows.append(row)
    return {**describe(config, task), "rows": rows, "manifest": describe_environment(session.device)}


if __name__ == "__main__":
    main()
