"""The command `pmal mine`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pmal.commands.options import AGAIN, MINING_HELP, DeviceOption, JsonOption, start_shared_session
from pmal.config import TEMPERATURES, MiningConfig, Resources
from pmal.errors import UsageError


def mine(
    embeddings: Annotated[Path, typer.Argument(metavar="EMBEDDINGS", help=".npz, .safetensors or .parquet.")],
    out: Annotated[Path, typer.Option(help="Writes OUT.json, OUT.safetensors, OUT.csv, OUT.samples.csv.")],
    heads: Annotated[int, typer.Option(min=2, help="Linear heads to fit if the file has none.")] = 2,
    epsilon: Annotated[float, typer.Option(help=MINING_HELP["epsilon"])] = MiningConfig.epsilon,
    per_class: Annotated[int, typer.Option(min=1, help=MINING_HELP["per_class"])] = MiningConfig.per_class,
    quality: Annotated[str, typer.Option(help=MINING_HELP["quality"])] = MiningConfig.quality,
    diversity: Annotated[str, typer.Option(help=MINING_HELP["diversity"])] = MiningConfig.diversity,
    topology: Annotated[str, typer.Option(help=MINING_HELP["topology"])] = MiningConfig.topology,
    temperature: Annotated[
        str, typer.Option(metavar="median|NUMBER", help="What divides x in r = exp(-x / temperature).")
    ] = "median",
    precision: Annotated[str, typer.Option(help=MINING_HELP["precision"])] = MiningConfig.precision,
    landmarks: Annotated[int, typer.Option(min=0, help=MINING_HELP["landmarks"])] = MiningConfig.landmarks,
    seed: Annotated[int, typer.Option(min=0, help="For heads and random choices.")] = 0,
    force: Annotated[bool, typer.Option(help="Replace earlier results.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Choose prototypes from the embeddings of any model, and rank every sample by robustness.

    The file holds z_0, W_0, z_1, W_1, ... and labels; one z without a head is enough.
    """
    settings = MiningConfig(
        per_class=per_class,
        epsilon=epsilon,
        quality=quality,
        diversity=diversity,
        topology=topology,
        temperature=_temperature(temperature),
        precision=precision,
        landmarks=landmarks,
    )
    session = start_shared_session(Resources(device=device), as_json, AGAIN)

    from pmal.mining.files.file_miner import mine_file

    found = mine_file(
        embeddings,
        out,
        settings,
        heads=heads,
        seed=seed,
        device=str(session.device),
        force=force,
        display=session.display,
        ranks=session.ranks,
    )
    if not session.ranks.first:
        return
    summary = found.summary()
    if as_json:
        print(json.dumps(summary))
    else:
        print(", ".join(f"{summary[name]:,} {name}" for name in ("samples", "candidates", "prototypes")))
        print("\n".join(summary["files"]))


def _temperature(text: str) -> float:
    """Return a temperature as `MiningConfig` has it: 0 is the median."""
    if text == "median":
        return MiningConfig.temperature
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not TEMPERATURES.allows(value):
        raise UsageError(f"--temperature {text}: use median or a number: {TEMPERATURES}")
    return value
