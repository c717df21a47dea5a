"""The command `pmal report`, and the report that `pmal fit` leaves."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmal.commands.options import (
    AGAIN,
    DataRootOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    WorkersOption,
    outside_data,
    start_session,
)
from pmal.config import Resources
from pmal.errors import first_line

if TYPE_CHECKING:
    from pmal._runtime.session import Session


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of `pmal fit`.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: RUN/report.html.")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Write what a run learned as one HTML file: results, embedding, scores, classes, prototypes, training.

    It needs the images.
    """
    session = start_session(Resources(device, data_root, workers, memory_limit), as_json, AGAIN)

    from pmal.reporting.page.run_report import write_report
    from pmal.run.run_folder import CONFIG, read_config

    if out is not None and (run / CONFIG).is_file():
        outside_data(out, read_config(run))
    path = write_report(run, session, out=out)
    print(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


def report_after_fit(run: Path, session: "Session") -> Path | None:
    """Write the report at the end of a fit. If it cannot be drawn, one line says why, and the fit is kept."""
    try:
        from pmal.reporting.page.run_report import write_report

        return write_report(run, session)
    except Exception as error:
        print(f"no report: {first_line(error)}; `pmal report {run}` tries again", file=sys.stderr)
        return None
