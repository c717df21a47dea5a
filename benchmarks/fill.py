"""Fill the ledger, most wanted cells first, for as long as there is time.

    python -m benchmarks.fill --seconds 540 --jobs 6 --data-root DATA --work WORK

Cells that are under way when the time is up save a checkpoint under WORK, and the next call goes on from
there. --dry-run lists what is missing.
"""

import argparse
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path

from pmal._runtime.progress import Lines
from pmal.benchmark.cells.cell import Cell
from pmal.benchmark.cells.running import Places
from pmal.benchmark.grid import Planned, Request, plan
from pmal.benchmark.schedule import missing_cells, run_at_once
from pmal.config import Resources
from pmal.errors import Interrupted

RESULTS = Path(__file__).parent / "results"
LENGTH = ("optimization.epochs=150", "optimization.refresh=16")
"""Of the second training, and the prototypes that are renewed at each step: 229 passes with 30 epochs."""
SHORT = ("optimization.epochs=60", "optimization.refresh=16")
"""For digits, where 100 passes are enough."""
SMOOTH = ("optimization.temperature=0.1", "optimization.margin=0", "optimization.weight=10")
"""The smooth loss, which is level with the hinge on known classes at 100 epochs."""
RANDOM = ("mining.quality=none", "mining.diversity=random")


def queue(methods: tuple[str, ...]) -> list[Request]:
    """What is asked for of these methods, most wanted first."""
    rows = [
        ("pmal,softmax-long", "cifar10", 30, LENGTH),
        ("pmal", "cifar10", 30, LENGTH + SMOOTH),
        ("pmal,softmax-long", "tinyimagenet", 30, LENGTH),
        ("softmax-ensemble", "cifar10,tinyimagenet", 30, LENGTH),
        ("softmax-long", "cifar+10,cifar+50", 30, LENGTH),
        ("pmal", "cifar+10,cifar+50", 30, LENGTH),
        ("softmax-long", "svhn,mnist", 20, SHORT),
        ("pmal", "svhn,mnist", 20, SHORT),
        ("softmax-ensemble", "cifar+10,cifar+50", 30, LENGTH),
        ("softmax-ensemble", "svhn,mnist", 20, SHORT),
        ("pmal", "cifar10,tinyimagenet", 30, LENGTH + RANDOM),
    ]
    wanted = [
        Request(method, data, "arpl", "0-4", epochs=epochs, settings=settings)
        for method, data, epochs, settings in rows
    ]
    wanted += [
        Request(None, "cifar10", "arpl", "0-4", epochs=30, settings=LENGTH, grid=grid)
        for grid in ("table3", "table4", "table5")
    ]
    return [one for one in wanted if set((one.methods or "pmal").split(",")) <= set(methods)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--methods", default="softmax-long,softmax-ensemble,pmal", help="of the queue")
    args = parser.parse_args()
    fill(queue(tuple(args.methods.split(","))), args)


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """The options of every script that fills the ledger from a queue."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.0, help="0: until all is done")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs") / "benchmark")
    parser.add_argument("--keep", action="store_true", help="keep the run folders of finished cells")
    parser.add_argument("--dry-run", action="store_true")
    return parser


def fill(requests: Iterable[Request], args: argparse.Namespace) -> None:
    """Compute the cells of these requests that the ledger lacks, in their order."""
    places, display = Places(args.out, args.work, args.keep), Lines()
    missing = missing_cells(all_cells(requests, args.data_root), places, display)
    if args.dry_run:
        print("\n".join(one.cell.name for one in missing))
        return
    resources = Resources(data_root=args.data_root)
    try:
        with_limit(args.seconds, lambda: run_at_once(missing, places, resources, args.jobs, display))
    except Interrupted:
        print("the time is up: the same command goes on")


def all_cells(requests: Iterable[Request], data_root: str | None) -> list[Planned]:
    """Every cell of these requests once, in their order."""
    found: dict[Cell, Planned] = {}
    for request in requests:
        for one in plan(request, data_root):
            found.setdefault(one.cell, one)
    return list(found.values())


def with_limit(seconds: float, work) -> None:
    """Do the work until it is done or the time is up, which interrupts it as a signal would."""

    def stop(number: int, frame: object) -> None:
        raise Interrupted(number, "the time is up")

    signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        work()
    finally:
        timer.cancel()


if __name__ == "__main__":
    main()
