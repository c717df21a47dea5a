"""What float16 (`--half`) changes of a finished model's answers, on a GPU.

    python benchmarks/half_precision.py RUN [--data-root DATA]

Every test image of the run is answered in both precisions: how many decisions differ, by how much the score
does, and AUROC and accuracy of both. Writes benchmarks/results/speed/half-NAME.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.data.feeding.parts import open_part
from pmal.data.splits.task import open_task
from pmal.errors import UsageError
from pmal.rejection.bundle.saving import load_model
from pmal.reporting.about import describe
from pmal.reporting.metrics import auroc
from pmal.run.run_folder import read_config


def measure(run: Path, data_root: str | None, device: str) -> dict[str, Any]:
    session, config = open_session(Resources(device=device, data_root=data_root)), read_config(run)
    task, model = open_task(config.data, data_root), load_model(run / "model", session.device)
    shape = model.classifier.spec.image_shape
    if task.unknown is None:
        raise UsageError(f"{run}: no unknown classes to reject: name a run that was fitted with some")
    parts = [open_part(name, getattr(task, name), shape, session) for name in ("test", "unknown")]
    full, half = ([one.answer(part.images) for part in parts] for one in (model, model.in_half_precision()))
    differ = sum(int((a.labels != b.labels).sum()) for a, b in zip(full, half, strict=True))
    largest = max(float((a.score - b.score).abs().max()) for a, b in zip(full, half, strict=True))
    labels = parts[0].labels(torch.device("cpu"))
    rows = [
        {
            "precision": precision,
            "accuracy": float((known.nearest == labels).float().mean()),
            "auroc": auroc(known.score.numpy(), unknown.score.numpy()),
            "accepted_known": float((known.labels >= 0).float().mean()),
            "rejected_unknown": float((unknown.labels < 0).float().mean()),
        }
        for precision, (known, unknown) in (("float32", full), ("float16", half))
    ]
    images = sum(len(answers.labels) for answers in full)
    spread = float(torch.cat([answers.score for answers in full]).std())
    found = {"images": images, "score": model.rule.score, "decisions_differ": differ}
    found |= {"largest_difference": largest, "deviation_of_scores": spread, "rows": rows}
    return {**describe(config, task), **found, "manifest": describe_environment(session.device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", help="of the result; default: the run's")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "speed")
    args = parser.parse_args()
    found = measure(args.run, args.data_root, args.device)
    write_json(make_folder(args.out) / f"half-{args.name or args.run.name}.json", found)
    print(json.dumps({name: found[name] for name in ("images", "decisions_differ", "rows")}, indent=2))


if __name__ == "__main__":
    main()
