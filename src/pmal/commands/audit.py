"""The command `pmal audit`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.options import (
    DataRootOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    WorkersOption,
    configure,
    outside_data,
    run_name,
    say_if_any,
    start_session,
)
from pmal.config import Resources
from pmal.errors import UsageError


def audit(
    target: Annotated[str, typer.Argument(metavar="RUN|SOURCE", help="A run, or data to fit one on first.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for table and sheets. Default: RUN/audit, or in runs/.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="For a SOURCE: as in fit.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="For a SOURCE: as in fit.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="For a SOURCE: any setting, as in fit.")
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Rank every training image by robustness within its class: audit.csv, and a contact sheet per class.

    A RUN needs two classifiers: pmal trains two, softmax with --set ensemble.size=2. For a SOURCE two are
    trained first, in OUT/run; other settings need another --out.
    """
    resources = Resources(device, data_root, workers, memory_limit)
    session = start_session(resources, as_json)

    from pmal import pipeline
    from pmal.reporting.ranking import audit_run, check_auditable, has_pictures
    from pmal.run.run_folder import read_config

    run = Path(target)
    if not (run / "config.toml").is_file():
        named = {"data": {"source": target}, "training": {"epochs": epochs}}
        # Nothing is rejected here, so that no image need be kept from the ranking for a threshold.
        usual = ["method=softmax", "ensemble.size=2", "data.held_out=0"]
        config, note = configure(recipe, named, [*usual, *(assignments or [])], resources)
        out = outside_data(out or Path("runs") / f"audit-{run_name(config)}", config)
        say_if_any(note, session)
        run = out / "run"
        check_auditable(run, config)
        pipeline.fit(config, run, session)
    elif recipe or epochs or assignments:
        raise UsageError(f"{target} is a run already: --recipe, --epochs and --set go with a SOURCE only")
    out = outside_data(out or run / "audit", read_config(run))
    found = audit_run(run, out, session)
    counts = {"images": len(found.samples), "candidates": int(found.candidate_N.sum())}
    counts["prototypes"] = len(found.prototypes)
    if as_json:
        print(json.dumps({"run": str(run), "out": str(out), **counts, "warnings": list(found.warnings)}))
    else:
        print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
        what = "table and contact sheets" if has_pictures(found.samples) else "table"
        print(f"{what}: {out}\nrun folder: {run}")
