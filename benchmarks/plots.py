"""Figures of the docs, from benchmarks/results/: python -m benchmarks.plots (needs matplotlib)."""

from collections import defaultdict
from pathlib import Path

from benchmarks.speed_tables import hardware_name
from pmal._runtime.files import make_folder, read_json

ROOT = Path(__file__).parents[1]


def mining_cost() -> None:
    """Seconds of the exact topology distance against the number of samples."""
    from matplotlib import pyplot

    curves = defaultdict(list)
    for file in sorted((ROOT / "benchmarks" / "results" / "mining").glob("*scaling*.json")):
        result = read_json(file)
        name = hardware_name(result)
        for row in result["rows"]:
            curves[f"{name}, K = {row['k']}, {row['method'].removeprefix('pmal ')}"].append(
                (row["n"], row["seconds"])
            )
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, points), marker in zip(curves.items(), "osd^v", strict=False):
        axes.loglog(*zip(*sorted(points), strict=True), marker=marker, label=name)
    axes.set(xlabel="samples N", ylabel="seconds for all N x N pairs")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(make_folder(ROOT / "docs" / "img") / "mining-cost.png", dpi=120)


if __name__ == "__main__":
    mining_cost()
