"""Tables of what models say to images that they were not made for, from benchmarks/results/far/."""

import json
import statistics
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

FAR = Path(__file__).parent / "results" / "far"
SCORES = ("probability", "logit", "energy", "distance", "neighbors", "combined", "typicality")
POST_HOC = ("mahalanobis", "vim", "react")
LOSS = ("margin", "temperature", "weight")
Runs = list[dict[str, Any]]


def rejected_table(source: str = "sample") -> str:
    """Share of the images called unknown by PMAL, by the near score alone and by both."""
    runs = [run for run in read_json(FAR / f"{source}.json")["runs"] if run["about"]["method"] == "pmal"]
    lines = _head("images", "near score alone", "with typicality")
    for name, rows in _rows(runs).items():
        shares = ([row["rejected"][kind] for row in rows] for kind in ("near", "both"))
        lines.append(_line(name, *map(_with_range, shares)))
    return "\n".join(lines)


def decisions_table() -> str:
    """Every model: the near score alone and both lines of defense, side by side."""
    figures = ("AUROC near", "both", "FPR95 near", "both", "rejected near", "both")
    lines = _head("model", "images", *figures)
    for title, runs in _groups().items():
        score, label = runs[0]["score"], f"{title}, by {runs[0]['score']}"
        for name, rows in _rows(runs).items():
            ranked = [_of_scores(rows, one, key) for key in ("auroc", "fpr95") for one in (score, "both")]
            shares = [[row["rejected"].get(kind) for row in rows] for kind in ("near", "both")]
            lines.append(_line(label, name, *map(_mean, ranked + shares)))
            label = ""  # once for all of its rows
    return "\n".join(lines)


def scores_table() -> str:
    """AUROC of every score, those of others among them."""
    names = (*SCORES, *POST_HOC)
    lines = _head("model", "images", *names)
    for title, runs in _groups().items():
        for name, rows in _rows(runs).items():
            if name != "known":
                lines.append(_line(title, name, *(_mean(_of_scores(rows, one, "auroc")) for one in names)))
                title = ""
    return "\n".join(lines)


def _groups() -> dict[str, Runs]:
    """Runs that differ in split and seed alone, by what they are."""
    groups = defaultdict(list)
    for file in sorted(FAR.glob("*.json")):
        for run in read_json(file)["runs"]:
            settings = {k: v for k, v in run["about"].items() if k not in ("model", "split", "seed")}
            groups[json.dumps([settings, run["about"]["split"].split("/")[0]])].append(run)
    return {_title(runs): runs for runs in groups.values()}


def _title(runs: Runs) -> str:
    about = runs[0]["about"]
    splits = sorted({run["about"]["split"].split("/")[1] for run in runs})
    seeds = {run["about"]["seed"] for run in runs}
    words = [f"{about['source']} {about['split'].split('/')[0]} {', '.join(splits)}"]
    words += [f"{len(seeds)} seeds"] if len(seeds) > 1 else []
    words += [f"{about['method']}, {about['passes']:.0f} passes"]
    loss = about.get("optimization", {})
    words += [f"{name} {loss[name]:g}" for name in LOSS if loss.get("temperature")]
    return ", ".join(words)


def _rows(runs: Runs) -> dict[str, Runs]:
    """Known images first, then every other set, each with its rows of all runs."""
    rows = defaultdict(list)
    for run in runs:
        rows["known"].append({**run["known"], "scores": {}})
        for row in run["far"]:
            rows[row["images"]].append(row)
    return rows


def _of_scores(rows: Runs, score: str, figure: str) -> list[float | None]:
    return [row["scores"].get(score, {}).get(figure) for row in rows]


def _mean(values: list[float | None]) -> str:
    return "" if None in values else f"{100 * statistics.mean(values):.1f}"


def _with_range(values: list[float]) -> str:
    return f"{_mean(values)} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def _head(*names: str) -> list[str]:
    return [_line(*names), f"|{'---|' * len(names)}"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


FAR_TABLES = {
    "far": rejected_table,
    "far cifar10": partial(rejected_table, "cifar10"),
    "far decisions": decisions_table,
    "far scores": scores_table,
}
