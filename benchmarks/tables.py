"""Markdown tables of README and docs, from benchmarks/results/. A test holds the two together.

python benchmarks/tables.py            # print them
python benchmarks/tables.py --write    # put them into README.md and docs/*.md, between their marks
"""

import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from pmal._runtime.files import read_json, write_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def softmax_table() -> str:
    """Mean over splits, one row per data set and recipe; every figure in percent."""
    groups = defaultdict(list)
    for file in sorted((RESULTS / "softmax").glob("*.json")):
        result = read_json(file)
        about = result["about"]
        family = about["split"].split("/")[0]
        groups[about["source"], family, about["encoder"], result["recipe"], about["epochs"]].append(result)
    lines = [
        "| data, family, splits | encoder, recipe, epochs | ACC "
        "| AUROC probability | AUROC max logit | AUROC energy | OSCR max logit |",
        "|---|---|---|---|---|---|---|",
    ]
    for (source, family, encoder, recipe, epochs), results in groups.items():
        splits = ", ".join(sorted(r["about"]["split"].split("/")[1] for r in results))
        scores = [[r["scores"][s]["auroc"] for r in results] for s in ("probability", "logit", "energy")]
        columns = [
            [r["accuracy"] for r in results],
            *scores,
            [r["scores"]["logit"]["oscr"] for r in results],
        ]
        figures = " | ".join(mean_and_deviation(column) for column in columns)
        lines.append(f"| {source}, {family}, {splits} | {encoder}, {recipe}, {epochs} | {figures} |")
    return "\n".join(lines)


def mean_and_deviation(estimates) -> str:
    values = [100 * estimate["value"] for estimate in estimates]
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def quality_table() -> str:
    """How well each rule finds damaged images."""
    results = [read_json(file) for file in sorted((RESULTS / "quality").glob("*.json"))]
    kinds = ["all", *results[0]["damaged"]["kinds"]]
    lines = [
        f"| recipe, epochs | rule | {' | '.join(kinds)} | accuracy by fifth |",
        f"|{'---|' * (len(kinds) + 3)}",
    ]
    for result in results:
        for rule, row in result["rules"].items():
            found = " | ".join(f"{100 * row['auroc'][kind]:.1f}" for kind in kinds)
            fifths = " ".join(f"{100 * value:.1f}" for value in row["accuracy_by_fifth"])
            setting = f"{result['recipe']}, {result['about']['epochs']}"
            lines.append(f"| {setting} | `{rule}` | {found} | {fifths} |")
    return "\n".join(lines)


def mining_table() -> str:
    """Pairs per second of the topology distance."""
    lines = [
        "| hardware | N | K | method | seconds | Gpairs/s | TFLOP/s | error of x | times torch.cdist |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted((RESULTS / "mining").glob("*.json")):
        result = read_json(file)
        hardware = result["manifest"]["hardware"]
        name = hardware.get("gpu") or f"{hardware['threads']} CPU threads"
        for row in result["rows"]:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}"
            lines.append(
                f"| {name} | {row['n']:,} | {row['k']} | {row['method']} | {row['seconds']:.3f} "
                f"| {row['gpairs_per_second']:.2f} | {row['tflops']:.2f} | {row['error']:.0e} | {ratio} |"
            )
    return "\n".join(lines)


TABLES = {"softmax": softmax_table, "quality": quality_table, "mining": mining_table}


def with_tables(text: str) -> str:
    """The document with the tables between its marks made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name} -->", "<!-- end of table -->"
        pattern = re.escape(begin) + r".*?" + re.escape(end)
        text = re.sub(pattern, lambda _, b=begin, t=table, e=end: f"{b}\n{t()}\n{e}", text, flags=re.S)
    return text


if __name__ == "__main__":
    if "--write" in sys.argv:
        for document in DOCUMENTS:
            write_text(document, with_tables(document.read_text()))
    else:
        print("\n\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))
