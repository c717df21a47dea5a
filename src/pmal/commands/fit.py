"""The command `pmal fit`."""

from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.evaluate import print_metrics
from pmal.commands.options import (
    DATA_HELP,
    ENCODER_HELP,
    RUN_HELP,
    TRAINING_HELP,
    CacheOption,
    CheckpointOption,
    DataRootOption,
    DeviceOption,
    FromOption,
    JsonOption,
    MemoryOption,
    OnlyOption,
    SetOption,
    WorkersOption,
    configure,
    outside_data,
    run_name,
    say_if_any,
    start_shared_session,
)
from pmal.commands.report import report_after_fit
from pmal.config import Resources, RunConfig, describe_recipes
from pmal.errors import UsageError
from pmal.run.stages import STAGE_NAMES


def fit(
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help=DATA_HELP["source"])] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/ and the run's name.")] = None,
    method: Annotated[str | None, typer.Option(help=RUN_HELP["method"])] = None,
    recipe: Annotated[str | None, typer.Option(help=f"{describe_recipes()}.")] = None,
    family: Annotated[str | None, typer.Option(help=DATA_HELP["family"])] = None,
    split: Annotated[int | None, typer.Option(min=0, help=DATA_HELP["split"])] = None,
    known: Annotated[str | None, typer.Option(help="Known classes by name, separated by commas.")] = None,
    num_known: Annotated[int | None, typer.Option(min=0, help=DATA_HELP["num_known"])] = None,
    long_tail: Annotated[
        float | None, typer.Option(metavar="RATIO", min=0, help=DATA_HELP["long_tail"])
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=RUN_HELP["seed"])] = None,
    encoder: Annotated[str | None, typer.Option(help=ENCODER_HELP["name"])] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help=ENCODER_HELP["weights"])
    ] = None,
    finetune: Annotated[str | None, typer.Option(metavar="last|all", help=ENCODER_HELP["finetune"])] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help=TRAINING_HELP["epochs"])] = None,
    assignments: SetOption = None,
    start: FromOption = None,
    only: OnlyOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    checkpoint_seconds: CheckpointOption = Resources.checkpoint_seconds,
    cache: CacheOption = None,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write RUN/report.html at the end.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Train on SOURCE (default: the embedded sample of digits) and measure the result.

    Run the same command again after an interruption: it resumes where it stopped. With --from or --only, a
    run keeps its settings where no others are given.
    """
    names = [name.strip() for name in known.split(",")] if known is not None else None
    if names and not all(names):
        raise UsageError(f"--known '{known}': a name between two commas is empty: write it as cat,dog,owl")
    named = {
        "method": method,
        "seed": seed,
        "data": {
            "source": source,
            "family": family,
            "split": split,
            "known": names,
            "num_known": num_known,
            "long_tail": long_tail,
        },
        # From wherever the run is resumed.
        "encoder": {
            "name": encoder,
            "weights": str(weights.absolute()) if weights else None,
            "finetune": finetune,
        },
        "training": {"epochs": epochs},
    }
    resources = Resources(device, data_root, workers, memory_limit, checkpoint_seconds, cache)
    kept = _kept(out) if out and (start or only) else None
    config, note = configure(recipe, named, assignments or [], resources, kept)
    out = outside_data(out or Path("runs") / run_name(config), config)
    session = start_shared_session(resources, as_json)
    say_if_any(note, session)

    from pmal import pipeline

    metrics = pipeline.fit(config, out, session, start=start, only=only)
    if not session.ranks.first:
        return
    if metrics or as_json:
        print_metrics(metrics, as_json)
    written = report_after_fit(out, session) if with_report and only in (None, STAGE_NAMES[-1]) else None
    if not as_json:
        if written:
            print(f"report: {written}")
        print(f"{f'stage {only} is done; ' if only else ''}run folder: {out}")


def _kept(out: Path) -> RunConfig | None:
    """Return the settings of a run that is there; None for a new one."""
    from pmal.run.run_folder import CONFIG, read_config

    return read_config(out) if (out / CONFIG).is_file() else None
