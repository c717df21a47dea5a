"""Tables, texts and sounds: the examples of examples/other_data, over several draws, for a table of the docs.

    python -m benchmarks.other_data --draws 2

Writes benchmarks/results/other_data/cpu.json.
"""

import argparse
import importlib
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from pmal._runtime.files import make_folder, read_json, write_json
from pmal._runtime.manifest import describe_environment

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "other_data" / "cpu.json"
EXAMPLES = ("tables", "text", "sound")
FIGURES = ("accuracy", "auroc", "known_accepted", "unknown_rejected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2)
    draws = parser.parse_args().draws
    sys.path.insert(0, str(ROOT / "examples" / "other_data"))
    manifest, rows = describe_environment(torch.device("cpu")), []
    comparison = importlib.import_module("comparison")
    for draw in range(draws):
        for example in EXAMPLES:
            for problem in importlib.import_module(example).problems(draw):
                found = list(comparison.compare(problem, draw))
                comparison.show(found)
                rows += [{"draw": draw, **row} for row in found]
                write_json(make_folder(OUT.parent) / OUT.name, {"rows": rows, "manifest": manifest})


def other_data_table() -> str:
    """Means over the draws, in percent."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in read_json(OUT)["rows"]:
        groups[row["data"], row["method"]].append(row)
    heads = ("data", "method", "accuracy", "AUROC", "known accepted", "unknown rejected")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (data, method), rows in groups.items():
        figures = [_mean([row[name] for row in rows]) for name in FIGURES]
        lines.append(f"| {' | '.join([data, f'`{method}`', *figures])} |")
    return "\n".join(lines)


def _mean(shares: list[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{100 * statistics.mean(known):.1f}" if known else ""


OTHER_DATA_TABLES = {"other data": other_data_table}

if __name__ == "__main__":
    main()
