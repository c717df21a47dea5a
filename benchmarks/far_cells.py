"""Finished cells of CIFAR-10 on far images, next to what is asked of them.

    python -m benchmarks.fill --keep --work WORK --data-root DATA      # keeps the run folders under WORK
    python -m benchmarks.far_cells WORK --data-root DATA               # all of them that are finished

Writes benchmarks/results/far/cifar10.json after each cell, and prints every cell's table and each method's
means. Where DATA lacks the other sets, files of 32 px that another machine made take their place:

    python -m benchmarks.far_cells --pack FAR --data-root DATA         # here: four files, 21 MB
    python -m benchmarks.far_cells WORK --data-root DATA --far FAR     # there
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pmal._runtime.files import make_folder, write_json
from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.benchmark.far.comparison import MOST, FarOptions, measure_runs
from pmal.benchmark.far.far_sets import open_far_set
from pmal.benchmark.far.far_text import far_text
from pmal.config import Resources
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.errors import UsageError

RESULTS = Path(__file__).parent / "results" / "far"
SETS = ("mnist", "svhn", "cifar100", "tinyimagenet")
SIDE = 32
GOALS = {
    "noise": ("rejected", 0.99),
    "constant": ("rejected", 0.99),
    "mnist": ("rejected", 0.99),
    "svhn": ("auroc", 0.96),
    "cifar100": ("auroc", None),
    "tinyimagenet": ("auroc", None),
    "unknown classes": ("auroc", -0.003),
}
"""The least share rejected or AUROC; None or a negative number: that of the near score alone, plus this."""


def finished(work: Path, pattern: str) -> list[Path]:
    """Return the run folders under WORK of the cells whose names have this form, if they have a model."""
    cells = sorted((work / "cells").glob(pattern))
    found = [cell / "run" for cell in cells if (cell / "run" / "metrics.json").is_file()]
    if not found:
        kept = "run benchmarks.fill or `pmal benchmark` with --keep and the same --work"
        raise UsageError(f"{work}: no finished run of {pattern} in cells/: {kept}")
    return found


def pack(folder: Path, data_root: str | None, most: int = MOST) -> None:
    """Write the far sets as files of small images."""
    make_folder(folder)
    for name in SETS:
        samples, line = open_far_set(name, "cifar10", (), data_root, most)
        if samples is None:
            raise UsageError(line)
        pixels = load_images(samples, ImageShape(SIDE, 3)).images.numpy()
        names = np.array(samples.class_names)
        np.savez_compressed(folder / name, images=pixels, labels=samples.labels, class_names=names)


def measure(
    runs: Iterable[Path], resources: Resources, sets: tuple[str, ...], most: int, out: Path
) -> list[dict[str, Any]]:
    """Return the figures of every run; they are written as they come."""
    found: dict[str, Any] = {"runs": []}
    for run in runs:
        one = measure_runs([run], open_session(resources, Lines()), FarOptions(sets=sets, most=most))
        for row in one["runs"][0]["far"]:
            row["images"] = row["images"].removesuffix(".npz")
        one["about"]["sets"] = [Path(name).name.removesuffix(".npz") for name in sets]
        found = {**one, "runs": [*found["runs"], *one["runs"]]}
        write_json(out, found)
        print(f"{far_text({'runs': one['runs']})}\n")
    return found["runs"]


def verdict(runs: list[dict[str, Any]]) -> str:
    """Return a line for every goal and method: the mean over its runs, and whether it is reached."""
    methods = defaultdict(list)
    for run in runs:
        methods[run["about"]["method"]].append(run)
    return "\n".join(line for name, those in methods.items() for line in _lines(name, those))


def _lines(method: str, runs: list[dict[str, Any]]) -> list[str]:
    accepted = [1 - _rejected(run["known"])[1] for run in runs if run["known"]["rejected"]]
    known = (
        f"{100 * statistics.mean(accepted):.1f} % of known images accepted" if accepted else "no threshold"
    )
    lines = [f"{method}, {len(runs)} runs: {known}"]
    for name, (figure, goal) in GOALS.items():
        rows = [(run["score"], row) for run in runs for row in run["far"] if row["images"] == name]
        pairs = [
            _ranked(*row) if figure == "auroc" else _rejected(row[1]) for row in rows if row[1]["rejected"]
        ]
        if not pairs:
            lines.append(f"  {name}: not measured")
            continue
        near, both = map(statistics.mean, zip(*pairs, strict=True))
        least = goal if goal and goal > 0 else near + (goal or 0.0)
        words = f"{figure} {100 * both:.1f}, near score alone {100 * near:.1f}, asked {100 * least:.1f}"
        lines.append(f"  {name}: {words}: {'holds' if both >= least else 'FALLS SHORT'}")
    return lines


def _rejected(row: dict[str, Any]) -> tuple[float, float]:
    """Return the share that the near score alone rejects, and that both reject."""
    near = row["rejected"]["near"]
    return near, row["rejected"].get("both", near)


def _ranked(score: str, row: dict[str, Any]) -> tuple[float, float]:
    """Return the AUROC of the near score alone, and of both."""
    near = row["scores"][score]
    return near["auroc"], row["scores"].get("both", near)["auroc"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--cells", default="*/cifar10-arpl*", help="pattern of names")
    parser.add_argument("--data-root")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--most", type=int, default=MOST, help="images of each far set")
    parser.add_argument("--out", type=Path, default=RESULTS / "cifar10.json")
    parser.add_argument("--far", type=Path, help="folder that --pack wrote")
    parser.add_argument("--pack", type=Path, metavar="FAR")
    args = parser.parse_args()
    if args.pack:
        pack(args.pack, args.data_root, args.most)
    if args.work:
        sets = SETS if args.far is None else tuple(str(args.far.absolute() / f"{name}.npz") for name in SETS)
        make_folder(args.out.absolute().parent)
        runs = finished(args.work, args.cells)
        print(verdict(measure(runs, Resources(args.device, args.data_root), sets, args.most, args.out)))


if __name__ == "__main__":
    main()
