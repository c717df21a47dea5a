"""Figures of the docs, from benchmarks/results/: python -m benchmarks.plots (needs matplotlib)."""

from collections import defaultdict
from itertools import cycle
from pathlib import Path

from benchmarks.cost_front import RESULTS, RULES, by_method, comparisons
from benchmarks.speed_tables import hardware_name
from pmal._runtime.files import make_folder, read_json
from pmal.benchmark.cells.cell import ENSEMBLE, FIT
from pmal.benchmark.ledger import Ledger

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


def auroc_cost(sources: tuple[str, ...] = ("cifar10", "tinyimagenet")) -> None:
    """AUROC against passes per training image, and the front of the rows that no other beats."""
    from matplotlib import pyplot, ticker

    results, _ = Ledger(RESULTS).results(FIT, ENSEMBLE)
    chosen = [one for one in comparisons(results) if one.source in sources]
    size = (5.2 * len(RULES), 3.9 * len(chosen))
    figure, grid = pyplot.subplots(len(chosen), len(RULES), figsize=size, layout="constrained", squeeze=False)
    names = ["softmax", "pmal", *dict.fromkeys(name for one in chosen for name in by_method(one))]
    looks = zip(
        dict.fromkeys(names), cycle("osD^vPX*<>"), cycle(pyplot.get_cmap("tab20").colors), strict=False
    )
    look_of = {name: {"marker": marker, "color": color} for name, marker, color in looks}
    for row, one in zip(grid, chosen, strict=True):
        for axes, (rule, score) in zip(row, RULES.items(), strict=True):
            for method, rows in by_method(one).items():
                points = [(row.passes, row.auroc(score)) for row in rows]
                axes.plot(*zip(*points, strict=True), **look_of[method], lw=1, label=method)
            front = [(row.passes, row.auroc(score)) for row in one.front(score)]
            axes.step(*zip(*front, strict=True), where="post", color="black", ls="--", lw=1, label="front")
            axes.set(xscale="log", xlabel="passes per training image", ylabel="AUROC, percent")
            axes.xaxis.set_major_locator(ticker.FixedLocator([100 * 2**i for i in range(6)]))
            axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
            axes.xaxis.set_minor_locator(ticker.NullLocator())
            axes.set_title(
                f"{one.source}, {one.family} {', '.join(map(str, one.splits))}: {rule}", fontsize=9
            )
            # Far below are rules that failed, as the table says; here the others must be told apart.
            values = sorted(value for _, value in front)
            axes.set_ylim(values[-1] - 8, values[-1] + 1)
            axes.grid(alpha=0.3)
        row[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(make_folder(ROOT / "docs" / "img") / "auroc-cost.png", dpi=110)


if __name__ == "__main__":
    mining_cost()
    auroc_cost()
