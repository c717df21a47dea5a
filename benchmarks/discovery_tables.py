"""Tables of the open-world loop, from benchmarks/results/discovery/."""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

FOLDER = Path(__file__).parent / "results" / "discovery"
SPACES = {
    "pretrained": "features of the pretrained network",
    "pmal": "embeddings of PMAL on them",
    "softmax": "embeddings of softmax on them",
}


def groups_table() -> str:
    """Groups among unknown classes, and k-means that is told their number; means over draws."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows("measure"):
        groups[row["data"], row["space"], row["method"]].append(row)
    heads = (
        "unknown classes",
        "space",
        "method",
        "groups",
        "in none",
        "accuracy",
        "adjusted Rand",
        "without those in none",
    )
    lines = _head(*heads)
    for (data, space, method), rows in groups.items():
        means = [_mean(rows, name) for name in ("groups", "left", "accuracy", "rand", "rand_without_left")]
        figures = [f"{means[0]:.1f}", *(f"{100 * share:.0f}" for share in means[1:])]
        lines.append(_line(f"{data}, {rows[0]['classes']}", SPACES[space], method, *figures))
    return "\n".join(lines)


def updates_table() -> str:
    """What is accepted of known samples after updates, where 90 % are promised."""
    kinds = {
        "before": "no correction",
        "fair": "a fair sample, twice 60",
        "mistakes": "only those of them that were rejected",
        "moved": "known classes have moved",
    }
    lines = _head("corrected", "score", "runs", "known accepted, %", "training advised, % of runs")
    rows = {(row["score"], row["kind"]): row for file in ("update", "promise") for row in _rows(file)}
    for row in rows.values():
        share = f"{100 * row['accepted']:.1f} ± {100 * row['standard_error']:.1f}"
        count, advised = f"{row['runs']:,}", f"{100 * row['advised']:.0f}"
        lines.append(_line(kinds[row["kind"]], row["score"], count, share, advised))
    return "\n".join(lines)


def watch_table() -> str:
    """False alarms, and changes that were found."""
    kinds = {
        "none": "nothing",
        "shift": "known scores, by half a standard deviation",
        "unknown": "a tenth of all images is unknown",
    }
    lines = _head(
        "what changes after 300",
        "alarm",
        "runs with it, of 1,000",
        "before the change",
        "answers to it, median",
    )
    for row in _rows("watch"):
        for name, words in (("known", "known images"), ("traffic", "all images")):
            delay = row[f"{name}_median_delay"]
            early = "" if row["kind"] == "none" else row[f"{name}_before_the_change"]
            found = row[f"{name}_alarms"]
            lines.append(
                _line(kinds[row["kind"]], words, found, early, "" if delay is None else f"{delay:.0f}")
            )
    return "\n".join(lines)


def _rows(file: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_json(FOLDER / f"{file}.json")["rows"]
    return rows


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(row[name] for row in rows)


def _head(*heads: str) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


DISCOVERY_TABLES = {"discovery": groups_table, "updates": updates_table, "watch": watch_table}
