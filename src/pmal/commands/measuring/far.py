"""The command `pmal benchmark far`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.options import (
    AGAIN,
    DataRootOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    WorkersOption,
    start_session,
)
from pmal.config import Resources
from pmal.errors import UsageError


def far(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or the model folders of runs.")
    ],
    data: Annotated[
        str | None, typer.Option(help="The set that a model folder without its run was trained on.")
    ] = None,
    sets: Annotated[
        str | None, typer.Option(help="Other sets, by commas: names, or folders. Default: all known ones.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Images of each other set, evenly spaced.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file.")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Show finished models images that they were not made for, and say how many they reject.

    Unknown classes, other data sets, and noise, constant, inverted, shuffled and blurred images; by the near
    score alone, by both lines of defense, and by every score. A set that is not under --data-root is left
    out, and so is the model's own.
    """
    if out is not None and out.is_dir():
        raise UsageError(f"--out {out} is a folder: name a file, such as {out / 'far.json'}")
    names = None if sets is None else [name.strip() for name in sets.split(",")]
    if names is not None and not all(names):
        raise UsageError(f"--sets '{sets}': a name between two commas is empty: write it as mnist,svhn")
    session = start_session(Resources(device, data_root, workers, memory_limit), as_json, AGAIN)

    from pmal._runtime.files import make_folder, write_json
    from pmal.benchmark.far.comparison import FarOptions, measure_runs
    from pmal.benchmark.far.far_sets import FAR_SETS
    from pmal.benchmark.far.far_text import far_text

    found = measure_runs(runs, session, FarOptions(data, names if names is not None else FAR_SETS, most))
    if out is not None:
        make_folder(out.parent)
        write_json(out, found)
    print(json.dumps(found) if as_json else far_text(found))
