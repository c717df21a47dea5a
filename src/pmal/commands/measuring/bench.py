"""The command `pmal bench`."""

import json
from typing import Annotated

import typer

from pmal.commands.options import AGAIN, DeviceOption, JsonOption, start_session
from pmal.config import Resources


def bench(
    encoder: Annotated[
        list[str] | None, typer.Option(help="Measure this encoder alone. May be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Seconds instead of a minute: rough figures.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure this machine: training, the PMAL step, mining and prediction, next to a plain training loop.

    All in one run on made-up images, in turns, so that the ratios hold on a busy machine, too.
    """
    session = start_session(Resources(device=device), as_json, AGAIN)

    from pmal.speed.bench_text import bench_text
    from pmal.speed.measuring import choose_sizes, run_bench

    found = run_bench(choose_sizes(session.device, encoder or [], quick), session)
    print(json.dumps(found) if as_json else bench_text(found))
