"""The command line: options in, text out. torch is imported inside the commands, so that help is instant.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 bad data, 130/143 interrupted after a safe checkpoint.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.config import (
    DataConfig,
    EncoderConfig,
    Resources,
    RunConfig,
    TrainingConfig,
    build,
    field_help,
    list_recipes,
    merge,
    parse_assignment,
    read_recipe,
)
from pmal.errors import UsageError

if TYPE_CHECKING:
    from pmal._runtime.session import Session

app = typer.Typer(
    help="Open-set recognition: names what it knows, says unknown to the rest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at data sets, check them, convert them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

_data, _training, _resources = field_help(DataConfig), field_help(TrainingConfig), field_help(Resources)
_run, _encoder = field_help(RunConfig), field_help(EncoderConfig)

SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help=_data["source"])]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `pmal fit` left.")]
DataRootOption = Annotated[str | None, typer.Option(help=_resources["data_root"])]
DeviceOption = Annotated[str, typer.Option(help=_resources["device"])]
WorkersOption = Annotated[int, typer.Option(min=0, help=_resources["workers"])]
MemoryOption = Annotated[float, typer.Option(min=0, help=_resources["memory_limit"])]
GO_ON = "run the same command again to go on where it stopped"
AGAIN = "nothing was written"
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


@app.command()
def fit(
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help=_data["source"])] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/ and the run's name.")] = None,
    method: Annotated[str | None, typer.Option(help=_run["method"])] = None,
    recipe: Annotated[str | None, typer.Option(help=f"{', '.join(list_recipes())}, or a TOML file.")] = None,
    family: Annotated[str | None, typer.Option(help=_data["family"])] = None,
    split: Annotated[int | None, typer.Option(min=0, help=_data["split"])] = None,
    known: Annotated[str | None, typer.Option(help="Known classes by name, separated by commas.")] = None,
    num_known: Annotated[int | None, typer.Option(min=2, help=_data["num_known"])] = None,
    seed: Annotated[int | None, typer.Option(min=0, help=_run["seed"])] = None,
    encoder: Annotated[str | None, typer.Option(help=_encoder["name"])] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help=_training["epochs"])] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other setting: section.field=value. May be repeated."),
    ] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help=_resources["checkpoint_seconds"])
    ] = Resources.checkpoint_seconds,
    as_json: JsonOption = False,
) -> None:
    """Train on SOURCE (default: the embedded sample of digits) and measure the result.

    Run the same command again after an interruption: it goes on where it stopped.
    """
    names = [name.strip() for name in known.split(",")] if known is not None else None
    named = {
        "method": method,
        "seed": seed,
        "data": {"source": source, "family": family, "split": split, "known": names, "num_known": num_known},
        "encoder": {"name": encoder},
        "training": {"epochs": epochs},
    }
    config = _configure(recipe, named, assignments or [])
    out = out or Path("runs") / _run_name(config)
    session = _start(Resources(device, data_root, workers, memory_limit, checkpoint_seconds), as_json)

    from pmal import pipeline

    metrics = pipeline.fit(config, out, session)
    _print_metrics(metrics, as_json)
    if not as_json:
        print(f"run folder: {out}")


@app.command()
def evaluate(
    run: RunArgument,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Measure a run again from its weights: ACC, and AUROC, FPR95 and OSCR of every score, with intervals."""
    session = _start(Resources(device, data_root, workers, memory_limit), as_json, AGAIN)

    from pmal import pipeline

    metrics = pipeline.evaluate(run, session)
    _print_metrics(metrics, as_json)


@app.command()
def mine(
    embeddings: Annotated[Path, typer.Argument(metavar="EMBEDDINGS", help=".npz, .safetensors or .parquet.")],
    out: Annotated[Path, typer.Option(help="Where to write: OUT.json, OUT.csv and OUT.samples.csv.")],
    heads: Annotated[int, typer.Option(min=2, help="Linear heads to fit where the file has none.")] = 2,
    epsilon: Annotated[float, typer.Option(help="Candidates have at least this share of the best r.")] = 0.7,
    per_class: Annotated[int, typer.Option(min=1, help="Prototypes per class.")] = 10,
    quality: Annotated[
        str, typer.Option(help="topology, probability, ensemble, mc-dropout, logit.")
    ] = "topology",
    diversity: Annotated[str, typer.Option(help="gap (Algorithm 1), random, kmeans, kcenter, none.")] = "gap",
    topology: Annotated[str, typer.Option(help="unit, rms or literal (the paper's text).")] = "unit",
    landmarks: Annotated[int | None, typer.Option(help="Estimate r from so many samples, not all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For heads and random choices.")] = 0,
    force: Annotated[bool, typer.Option(help="Replace earlier results.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Choose prototypes from the embeddings of any model, and rank every sample by robustness.

    The file holds z_0, W_0, z_1, W_1, ... and labels; one z without a head is enough.
    """
    session = _start(Resources(device=device), as_json, AGAIN)

    from pmal.mining import mine_file

    found = mine_file(
        embeddings,
        out,
        heads=heads,
        epsilon=epsilon,
        per_class=per_class,
        quality=quality,
        diversity=diversity,
        topology=topology,
        landmarks=landmarks,
        seed=seed,
        force=force,
        device=device,
        display=session.display,
    )
    summary = found.summary()
    if as_json:
        print(json.dumps(summary))
    else:
        print(", ".join(f"{summary[name]:,} {name}" for name in ("samples", "candidates", "prototypes")))
        print("\n".join(summary["files"]))


@app.command()
def audit(
    target: Annotated[str, typer.Argument(metavar="RUN|SOURCE", help="A run, or data to fit one on first.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the table and sheets. Default: RUN/audit.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="For a SOURCE: as in fit.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="For a SOURCE: as in fit.")] = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = 0,
    memory_limit: MemoryOption = Resources.memory_limit,
    as_json: JsonOption = False,
) -> None:
    """Rank every training image by robustness within its class: audit.csv, and a contact sheet per class.

    A RUN needs two classifiers: pmal trains two, softmax with --set ensemble.size=2. For a SOURCE two are
    trained first.
    """
    session = _start(Resources(device, data_root, workers, memory_limit), as_json)

    from pmal import pipeline
    from pmal.reporting.audit import audit_run

    run = Path(target)
    if not (run / "config.toml").is_file():
        named = {"method": "softmax", "data": {"source": target}, "training": {"epochs": epochs}}
        named["ensemble"] = {"size": 2}
        config = _configure(recipe, named, [])
        run = Path("runs") / f"audit-{_run_name(config)}"
        pipeline.fit(config, run, session)
    out = out or run / "audit"
    found = audit_run(run, out, session)
    counts = {"images": len(found.samples), "candidates": int(found.candidate_N.sum())}
    counts["prototypes"] = len(found.prototypes)
    if as_json:
        print(json.dumps({"out": str(out), **counts}))
    else:
        print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
        print(f"table and contact sheets: {out}")


@data_app.command("list")
def data_list(data_root: DataRootOption = None, as_json: JsonOption = False) -> None:
    """The data sets known by name, and where they are, or what is looked for under the data root."""
    from pmal.data.sources.registry import find_source, list_sources

    rows = [(info, find_source(info.name, data_root)) for info in list_sources()]
    if as_json:
        print(json.dumps([{"name": info.name, "found": str(where or "") or None} for info, where in rows]))
        return
    from pmal.reporting.tables import align

    places = [str(where) if where else f"not found: {', '.join(info.files)}" for info, where in rows]
    print(
        align([[info.name, info.description, place] for (info, _), place in zip(rows, places, strict=True)])
    )


@data_app.command("check")
def data_check(source: SourceArgument, data_root: DataRootOption = None, as_json: JsonOption = False) -> None:
    """Read every image of SOURCE: counts, sizes, unreadable files, equal images in different classes."""
    session = _start(Resources(data_root=data_root), as_json, AGAIN)

    from pmal.data.check import check_source, describe_check
    from pmal.data.sources.registry import open_source

    found = check_source(open_source(source, data_root), session.display)
    print(json.dumps(found) if as_json else describe_check(found))


@data_app.command("convert")
def data_convert(
    source: SourceArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The Parquet file to write.")],
    data_root: DataRootOption = None,
    force: Annotated[bool, typer.Option(help="Replace OUT.parquet where it exists.")] = False,
) -> None:
    """Write SOURCE as one Parquet file in Hugging Face's image layout. Encoded images keep their bytes."""
    _start(Resources(data_root=data_root), True, AGAIN)

    from pmal.data.sources.parquet import write_parquet
    from pmal.data.sources.registry import open_source

    if out.suffix != ".parquet":
        raise UsageError(f"{out}: the name must end in .parquet")
    if out.exists() and not force:
        raise UsageError(f"{out} exists: choose another name, or pass --force")
    opened = open_source(source, data_root)
    parts = {"train": opened.train} | ({"test": opened.test} if opened.test is not None else {})
    if opened.foreign is not None:
        typer.echo(
            f"warning: the unknown images of {source} belong to another set and are left out", err=True
        )
    write_parquet(out, parts)
    print(f"{out}: " + ", ".join(f"{len(part):,} {name} images" for name, part in parts.items()))


@data_app.command("splits")
def data_splits(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set with published splits.")],
    family: Annotated[str | None, typer.Option(help=_data["family"])] = None,
    as_json: JsonOption = False,
) -> None:
    """The known and unknown classes of every split, and what is wrong with the published lists."""
    from pmal.data.protocols import as_json as splits_as_json
    from pmal.data.protocols import list_families, split_defects, splits

    families = list_families(name)
    family = family or ("arpl" if "arpl" in families else families[0])
    table = splits(name, family)
    if as_json:
        print(json.dumps(splits_as_json(table)))
    else:
        for split in table:
            where = " (of the other set)" if split.foreign else ""
            print(f"{split.label}  known {_ids(split.known)}  unknown{where} {_ids(split.unknown)}")
    for defect in split_defects(name, family):
        typer.echo(f"warning: {defect} (family {family})", err=True)


def _configure(recipe: str | None, named: dict[str, Any], assignments: list[str]) -> RunConfig:
    """Defaults, then the recipe, then `--set`, then the options by name."""
    given = merge(*(parse_assignment(text) for text in assignments), _given(named))
    if recipe is None:
        recipe = "sample" if _source(given) == "sample" else "standard"
    settings = merge(read_recipe(recipe), given)
    return build(RunConfig, merge(settings, {"data": {"source": _absolute(_source(settings))}}))


def _source(settings: dict[str, Any]) -> str:
    data = settings.get("data", {})
    return str(data.get("source", "sample")) if isinstance(data, dict) else "sample"


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Only what the user gave: None means the recipe or the default decides."""
    nested = {k: _given(v) if isinstance(v, dict) else v for k, v in settings.items()}
    return {k: v for k, v in nested.items() if v is not None and v != {}}


def _absolute(source: str) -> str:
    """A path that stays right when the run is evaluated from another folder; names stay names."""
    from pmal.data.sources.registry import is_named

    try:
        source.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{source!r}: the path is not valid UTF-8: rename the folder") from None
    return source if is_named(source) or not Path(source).exists() else os.path.abspath(source)


def _run_name(config: RunConfig) -> str:
    words = [Path(config.data.source).name, config.method, config.data.family, str(config.data.split)]
    name = "-".join([*words, config.encoder.name, f"seed{config.seed}"]).replace("/", "-")
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def _start(resources: Resources, quiet: bool, advice: str = GO_ON) -> "Session":
    from pmal._runtime.progress import choose_display
    from pmal._runtime.session import open_session
    from pmal._runtime.signals import raise_on_signals

    raise_on_signals(advice)
    return open_session(resources, choose_display(quiet))


def _print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    from pmal.reporting.tables import run_table

    print(json.dumps(metrics) if as_json else run_table(metrics))


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "all"
