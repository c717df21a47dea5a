"""Fill the ledger with what a table of all methods lacks: common recipe, own recipes, neal splits, long tail.

    python -m benchmarks.fill_published --seconds 540 --jobs 6 --data-root DATA --work WORK

Cells come in the order of what they say for their cost. Those that are under way when the time is up save a
checkpoint under WORK, and the next call goes on from there. --dry-run lists what is missing, --parts chooses.
"""

import argparse
from pathlib import Path

from benchmarks.fill import RESULTS, with_limit
from pmal._runtime.progress import Lines
from pmal.benchmark.cells.cell import Cell
from pmal.benchmark.cells.running import Places
from pmal.benchmark.grid import Planned, Request, plan, words
from pmal.benchmark.schedule import missing_cells, run_at_once
from pmal.config import OWN, Resources
from pmal.errors import Interrupted

CHEAP = "softmax,arpl,cpn,rpl,rpl++,openmax,cgdl,openhybrid,cssr"
"""One pass per image and epoch, so that the common recipe takes half a minute of a large GPU."""
DEAR = "proser,conosr,sphor,arpl+cs,pmal"
OWN_ORDER = ("cpn,cgdl,arpl,rpl,rpl++,openmax", "softmax,arpl+cs", "proser,cssr", "sphor,conosr,openhybrid")
"""By cost: 100 passes, 600 and 200, a wide ResNet, 2,400 and 600."""
LONG_TAIL = ("data.num_known=80", "data.long_tail=100")
"""TinyImageNet's 80 classes with training images, of 490 to 5 images; 120 unknown ones."""


def queue() -> dict[str, list[Request]]:
    """What is asked for, by part; each part with its most wanted cells first."""
    return {
        "common": [
            Request(methods, data, "arpl", "0-2", recipe="strong", epochs=100)
            for data in ("cifar10", "tinyimagenet", "svhn,mnist", "cifar+10,cifar+50")
            for methods in (CHEAP, DEAR)
        ],
        "own": [
            Request(methods, data, "arpl", "0-2", recipe=OWN)
            for methods in OWN_ORDER
            for data in ("cifar10", "tinyimagenet")
        ],
        "neal": [Request("softmax,arpl,pmal", "cifar10", "neal", "0-2", recipe="strong", epochs=100)],
        "long-tail": [
            Request(method, "tinyimagenet", "random", "0-2", recipe="strong", epochs=200, settings=LONG_TAIL)
            for method in ("softmax", "pmal", "softmax-long")
        ],
    }


def cells(parts: list[str], data_root: str | None) -> list[Planned]:
    """Every cell of these parts once, in the order of the queue."""
    found: dict[Cell, Planned] = {}
    for request in (request for part in parts for request in queue()[part]):
        for one in plan(request, data_root):
            found.setdefault(one.cell, one)
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default=",".join(queue()), help="of the queue, in this order")
    parser.add_argument("--seconds", type=float, default=0.0, help="0: until all is done")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs") / "benchmark")
    parser.add_argument("--keep", action="store_true", help="keep the run folders of finished cells")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    places, display = Places(args.out, args.work, args.keep), Lines()
    missing = missing_cells(cells(words(args.parts), args.data_root), places, display)
    if args.dry_run:
        print("\n".join(one.cell.name for one in missing))
        return
    resources = Resources(data_root=args.data_root)
    try:
        with_limit(args.seconds, lambda: run_at_once(missing, places, resources, args.jobs, display))
    except Interrupted:
        print("the time is up: the same command goes on")


if __name__ == "__main__":
    main()
