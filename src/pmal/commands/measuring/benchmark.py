"""The command `pmal benchmark`, with `pmal benchmark table` and `pmal benchmark far`."""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmal.commands.measuring.far import far
from pmal.commands.options import (
    AGAIN,
    DATA_HELP,
    ENCODER_HELP,
    GO_ON,
    DataRootOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    SetOption,
    WorkersOption,
    start_session,
)
from pmal.config import Resources, describe_recipes
from pmal.errors import PmalError, UsageError, unknown_name

if TYPE_CHECKING:
    from pmal._runtime.session import Session
    from pmal.benchmark.cells.running import Places
    from pmal.benchmark.grid import Planned

RESULTS = Path("benchmarks") / "results"
WORK = Path("runs") / "benchmark"

benchmark_app = typer.Typer()
benchmark_app.command("far")(far)
OutOption = Annotated[Path, typer.Option(help="The ledger: one JSON file per cell.")]


@benchmark_app.callback(invoke_without_command=True)
def benchmark(
    context: typer.Context,
    methods: Annotated[
        str | None,
        typer.Option(
            help="By commas, or all. softmax-long, softmax-ensemble: at pmal's cost. Default: softmax,pmal."
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="Data sets, separated by commas.")] = "sample",
    family: Annotated[str, typer.Option(help=DATA_HELP["family"])] = "auto",
    splits: Annotated[str, typer.Option(help="Such as 0,2,4 or 0-4, or all.")] = "0",
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2 or 0-2.")] = "0",
    encoder: Annotated[str | None, typer.Option(help=ENCODER_HELP["name"])] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help=f"{describe_recipes()}. Default: strong; sample for it."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Per training. Default: the recipe's.")] = None,
    assignments: SetOption = None,
    grid: Annotated[
        str | None,
        typer.Option(help="Ablations of pmal, by commas: table3, table4, table5, lambda, fluctuation."),
    ] = None,
    out: OutOption = RESULTS,
    work: Annotated[Path, typer.Option(help="Runs that are not finished, and shared classifiers.")] = WORK,
    keep: Annotated[bool, typer.Option(help="Keep the run folders of finished cells.")] = False,
    dry_run: Annotated[bool, typer.Option(help="List the cells and their time; compute nothing.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at the same time.")] = 1,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Run methods x data sets x splits x seeds: one JSON per cell.

    Cells in the ledger are not computed again.

    Run the same command again after an interruption: it resumes where it stopped.
    """
    if context.invoked_subcommand:
        return
    from pmal.benchmark.grid import Request, plan

    settings = tuple(assignments or ())
    request = Request(methods, data, family, splits, seeds, encoder, recipe, epochs, settings, grid)
    planned = plan(request, data_root)
    resources = Resources(device, data_root, workers, memory_limit)
    session = start_session(resources, as_json, AGAIN if dry_run else GO_ON)

    from pmal.benchmark.cells.running import Places
    from pmal.benchmark.schedule import missing_cells

    places = Places(out, work, keep)
    missing = missing_cells(planned, places, session.display)
    if dry_run:
        _show_plan(planned, missing, places, session, as_json)
        return
    failed = _run(missing, places, session, jobs)
    _conclude(len(planned), len(missing), failed, as_json)


def _conclude(planned: int, missing: int, failed: list[str], as_json: bool) -> None:
    counts = {"cells": planned, "in the ledger": planned - missing}
    counts |= {"failed": len(failed), "computed": missing - len(failed)}
    print(json.dumps(counts) if as_json else ", ".join(f"{count} {name}" for name, count in counts.items()))
    if failed:
        raise PmalError(f"{len(failed)} of {missing} cells failed: {', '.join(failed)}")


def _run(missing: "list[Planned]", places: "Places", session: "Session", jobs: int) -> list[str]:
    from pmal._runtime.files import make_folder
    from pmal.benchmark.schedule import run_at_once, run_one_by_one
    from pmal.data.sources.readers import open_source

    make_folder(places.out)
    for source in dict.fromkeys(one.cell.source_path or one.cell.source for one in missing):
        open_source(source, session.resources.data_root)  # fails now if the data are missing
    if missing:
        make_folder(places.work)
    if jobs == 1 or len(missing) < 2:
        return run_one_by_one(missing, places, session)
    return run_at_once(missing, places, session.resources, jobs, session.display)


def _show_plan(
    planned: "list[Planned]", missing: "list[Planned]", places: "Places", session: "Session", as_json: bool
) -> None:
    from pmal._runtime.devices import describe_hardware
    from pmal.benchmark.cells.running import count_training_images
    from pmal.benchmark.estimates import describe, estimate_cells, total

    results, _ = places.ledger.results()
    store = places.store(session.device)
    estimates = estimate_cells(
        missing,
        results,
        describe_hardware(session.device),
        device=session.device.type,
        trained=store.__contains__,
        count_images=lambda cell: count_training_images(cell, session.resources.data_root),
    )
    found = dict(zip((one.cell for one in missing), estimates, strict=True))
    rows = [(one.cell.name, found.get(one.cell)) for one in planned]
    if as_json:
        print(json.dumps([{"cell": name, "seconds": e and e.seconds, "done": e is None} for name, e in rows]))
    else:
        print("\n".join([*(f"{name}: {describe(e)}" for name, e in rows), total(estimates, len(planned))]))


@benchmark_app.command("table")
def table(
    paper: Annotated[bool, typer.Option("--paper", help="The paper's tables, next to its figures.")] = False,
    number: Annotated[
        int | None, typer.Option("--table", min=1, max=5, help="One of the paper's tables alone.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="terminal, markdown, latex (booktabs) or csv.")
    ] = "terminal",
    out: OutOption = RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Print means and deviations over splits, from the ledger; with --paper also the paper's figures.

    Without it: every method that was run, and paired differences against softmax. A table that is wider than
    the terminal is shown row by row.
    """
    from pmal.benchmark.ledger import Ledger
    from pmal.benchmark.rendering import FORMATS, as_data, render
    from pmal.benchmark.tables.method_tables import ledger_tables, paper_tables

    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    if not out.is_dir():
        raise UsageError(f"--out {out}: no such folder: name the ledger that `pmal benchmark` wrote")
    tables, broken = (paper_tables if paper or number else ledger_tables)(Ledger(out))
    for line in broken:
        print(f"warning: {line}", file=sys.stderr)
    chosen = [one for one in tables if number is None or one.number == number]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(json.dumps(as_data(chosen)) if as_json else render(chosen, form, width))
