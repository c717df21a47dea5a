"""An exported file beside PyTorch, one CPU thread each: python -m benchmarks.export RUN --name cpu

Writes benchmarks/results/export/NAME.json: time of one image, images per second in batches, and decisions
that differ on the test images of the run. RUN: what `pmal fit` left. Set OMP_NUM_THREADS=1. Times are those
of this process alone, in turns, so that other load on the machine counts little.
"""

import argparse
import statistics
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.data.decoding.loading import load_images
from pmal.data.splits.task import open_task
from pmal.errors import UsageError
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.model import OpenSetModel
from pmal.run.run_folder import read_config
from pmal.serving.answers.answering import with_rule
from pmal.serving.onnx.exporting import export_onnx
from pmal.serving.onnx.onnx_model import BATCH, OnnxModel
from pmal.serving.onnx.parity import images_to_check
from pmal.speed.timing import Stopwatch, in_turns

RESULTS = Path(__file__).parent / "results" / "export"
TURNS = 30
WATCH = Stopwatch(wait=lambda: None, clock=time.process_time)


def measure(model: OpenSetModel, run: Path, score: str) -> dict[str, Any]:
    """One row: an exported file of this score."""
    session = open_session(Resources(device="cpu"))
    begin = time.process_time()
    exported = export_onnx(model, images_to_check(model, run, session))
    took = time.process_time() - begin
    runtime = OnnxModel(exported.data, "exported", threads=1)
    spec, task = model.classifier.spec, open_task(read_config(run).data, None)
    parts = [part for part in (task.test, task.unknown) if part is not None]
    images = torch.cat([load_images(part, spec.image_shape).images for part in parts])
    labels = model.answer(images).labels.numpy()
    row: dict[str, Any] = {
        "score": score,
        "bytes": len(exported.data),
        "export_cpu_s": took,
        "test_images": len(images),
        "decisions_differ": int((runtime.run(images.numpy())["label"] != labels).sum()),
        "score_difference": exported.parity.score_difference,
    }
    for name, count in (("one_image", 1), ("batch", BATCH)):
        few = images[:count].clone()
        pixels = np.ascontiguousarray(few.numpy())
        works = {"pytorch": lambda f=few: model.answer(f), "onnx": lambda p=pixels: runtime.run(p)}
        row[name] = {}
        for kind, taken in in_turns(works, WATCH, warmup=1, repeats=TURNS).items():
            seconds = statistics.median(taken)
            row[name][kind] = {"ms": 1e3 * seconds, "images_per_s": count / seconds}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="cpu")
    args = parser.parse_args()
    if torch.get_num_threads() > 1:
        raise UsageError("set OMP_NUM_THREADS=1: the time of a process is that of one thread")
    model = load_model(args.run / "model", torch.device("cpu"))
    rows = []
    for score in model.score_names:
        rows.append(measure(with_rule(model, score=score), args.run, score))
        print(rows[-1])
    about = describe_environment(torch.device("cpu"))
    about["libraries"] |= {name: metadata.version(name) for name in ("onnx", "onnxscript", "onnxruntime")}
    spec = model.classifier.spec
    about["model"] = {"encoder": spec.encoder.name, "image_size": spec.image_size, "batch": BATCH}
    write_json(make_folder(RESULTS) / f"{args.name}.json", {"about": about, "rows": rows})


if __name__ == "__main__":
    main()
