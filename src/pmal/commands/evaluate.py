"""The command `pmal evaluate`."""

import json
from typing import Any

from pmal.commands.options import (
    AGAIN,
    DataRootOption,
    DeviceOption,
    JsonOption,
    MemoryOption,
    RunArgument,
    WorkersOption,
    start_session,
)
from pmal.config import Resources


def evaluate(
    run: RunArgument,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Measure a run again from its weights: ACC, and AUROC, FPR95 and OSCR of every score, with intervals."""
    session = start_session(Resources(device, data_root, workers, memory_limit), as_json, AGAIN)

    from pmal import pipeline

    metrics = pipeline.evaluate(run, session)
    print_metrics(metrics, as_json)


def print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    """Print the figures of a run: a table, or JSON."""
    from pmal.reporting.tables import run_table

    print(json.dumps(metrics) if as_json else run_table(metrics))
