"""Which rule of a baseline rejects: every score of a method, on known classes alone.

    python -m benchmarks.rule_choice --methods cpn,cgdl --data-root DATA

Some known classes of a split play the unknown ones, as in `search.py`, so that no test image decides. Writes
benchmarks/results/search/rules.json.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks.search import Try, attempt
from pmal._runtime.files import read_json, write_json
from pmal._runtime.manifest import describe_environment
from pmal.benchmark.grid import whole_numbers, words
from pmal.methods import METHODS

OUT = Path(__file__).parent / "results" / "search" / "rules.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--methods", default="cpn,cgdl")
    parser.add_argument("--source", default="cifar10")
    parser.add_argument("--splits", default="0,2,4")
    parser.add_argument("--unknown", type=int, default=2)
    parser.add_argument("--recipe", default="strong")
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--settings", default="data.limit=500", help="separated by spaces")
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    manifest, rows = describe_environment(torch.device("cpu")), []
    for method in words(args.methods):
        for split in whole_numbers(args.splits, "--splits"):
            one = Try(method, args.source, "arpl", split, args.unknown, 0, args.recipe, args.encoder,
                      args.epochs, 0, args.settings, args.data_root)  # fmt: skip
            with tempfile.TemporaryDirectory() as work:
                rows.append({"problem": one.problem} | attempt(one, Path(work), None))
            print(rows[-1], flush=True)
            write_json(args.out, {"rows": rows, "manifest": manifest})


def rules_table() -> str:
    """The AUROC of each score that a method could reject by, in percent: mean over the problems."""
    rows = read_json(OUT)["rows"]
    lines = ["| method | problems | ACC | AUROC by score |", "|---|---|---|---|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        names = [*METHODS[method].scores, "logit", "probability"]
        means = [f"{name} {100 * statistics.fmean(row['auroc'][name] for row in own):.1f}" for name in names]
        accuracy = 100 * statistics.fmean(row["accuracy"] for row in own)
        lines.append(f"| {method} | {len(own)} | {accuracy:.1f} | {', '.join(means)} |")
    return "\n".join(lines)


RULE_TABLES = {"rules": rules_table}


if __name__ == "__main__":
    main()
