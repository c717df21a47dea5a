"""The command line: options in, text out. torch is imported inside the commands, so that help is instant.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 bad data, 130/143 interrupted after a safe checkpoint.
"""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.commands.add_class import add_class
from pmal.commands.bench import bench
from pmal.commands.benchmark import benchmark_app
from pmal.commands.data import data_app
from pmal.commands.export import export, open_exported
from pmal.commands.open_world.discover import discover
from pmal.commands.open_world.history import history
from pmal.commands.open_world.remove_class import remove_class
from pmal.commands.open_world.update import update
from pmal.commands.open_world.watch import watch
from pmal.commands.options import (
    AGAIN,
    DATA_HELP,
    ENCODER_HELP,
    MINING_HELP,
    RUN_HELP,
    TRAINING_HELP,
    AcceptOption,
    CacheOption,
    CheckpointOption,
    DataRootOption,
    DeviceOption,
    FromOption,
    HalfOption,
    JsonOption,
    MemoryOption,
    OnlyOption,
    PerClassOption,
    RunArgument,
    ScoreOption,
    SetOption,
    ThresholdOption,
    WorkersOption,
    checked,
    general,
    give_plugins,
    start_display,
    start_session,
    start_shared_session,
)
from pmal.commands.report import report, report_after_fit
from pmal.commands.serve import serve
from pmal.config import (
    OWN,
    TEMPERATURES,
    MiningConfig,
    Resources,
    RunConfig,
    build,
    describe_recipes,
    merge,
    parse_assignment,
    read_recipe,
)
from pmal.errors import DataError, UsageError
from pmal.run.stages import STAGE_NAMES

if TYPE_CHECKING:
    from pmal._runtime.session import Session
    from pmal.serving.answers.image_files import BadFile

app = typer.Typer(
    help="Open-set recognition: names what it knows, says unknown to the rest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(general)
app.add_typer(data_app, name="data")
app.add_typer(benchmark_app, name="benchmark")


@app.command()
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

    Run the same command again after an interruption: it resumes where it stopped.
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
    config, note = _configure(recipe, named, assignments or [], resources)
    out = _outside_data(out or Path("runs") / _run_name(config), config)
    session = start_shared_session(resources, as_json)
    _say(note, session)

    from pmal import pipeline

    metrics = pipeline.fit(config, out, session, start=start, only=only)
    if not session.ranks.first:
        return
    if metrics or as_json:
        _print_metrics(metrics, as_json)
    written = report_after_fit(out, session) if with_report and only in (None, STAGE_NAMES[-1]) else None
    if not as_json:
        if written:
            print(f"report: {written}")
        print(f"{f'stage {only} is done; ' if only else ''}run folder: {out}")


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
    session = start_session(Resources(device, data_root, workers, memory_limit), as_json, AGAIN)

    from pmal import pipeline

    metrics = pipeline.evaluate(run, session)
    _print_metrics(metrics, as_json)


@app.command()
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, the model folder in it, or an exported file.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|EMBEDDINGS",
            help="Image files, folders of them; for a model of embeddings, .npz, .parquet or .safetensors.",
        ),
    ],
    score: ScoreOption = None,
    accept: AcceptOption = None,
    per_class: PerClassOption = None,
    threshold: ThresholdOption = None,
    fdr: Annotated[
        float | None,
        typer.Option(help="Of all images called unknown, let at most this share be known, such as 0.1."),
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Prototypes to show for each image.")] = 3,
    device: DeviceOption = "auto",
    half: HalfOption = False,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Answer by version N of the model (`pmal history`).")
    ] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a line per image as CSV.")] = False,
) -> None:
    """Say the class of images, or unknown, and by which prototypes. Other options keep their fitted values.

    Files that cannot be read are listed and the others are answered; the exit code is 3 then.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv do not go together: choose one")
    if fdr is not None:
        from pmal.rejection.calibration.thresholds import check_fdr

        check_fdr(fdr)
    # Taken now, because a progress bar redirects it; and no bar is drawn into what goes to the same terminal.
    out = sys.stdout
    quiet = as_json or (as_csv and out.isatty())
    advice = "not every image was answered"
    rule: dict[str, Any] = {"score": score, "accept": accept, "per_class": per_class, "threshold": threshold}
    if run.suffix == ".onnx" and not run.is_dir():
        display = start_display(quiet, advice)
        if half:
            raise UsageError("--half goes with a run folder: an exported file computes as it was exported")
        if version is not None:
            raise UsageError("--version goes with a run folder: an exported file has one version")
        exported = open_exported(run, device, **rule)
        about, answer = exported.about(), partial(exported.answer_files, display=display, top=top)
    else:
        session = start_session(Resources(device=device), quiet, advice)
        about, answer = _open_model(run, version, rule, half, session, top)

    from pmal.serving.answers.answer_rows import decide_together
    from pmal.serving.answers.answer_text import error_lines, write_answers

    errors: list[BadFile] = []
    answered = 0

    def counted(blocks: Iterable[Any]) -> Iterator[Any]:
        nonlocal answered
        for block in blocks:
            answered += len(block)
            yield block

    with contextlib.closing(answer(images, errors)) as found:
        blocks = counted(found)
        form = "json" if as_json else "csv" if as_csv else "table"
        if fdr is None:
            write_answers(out, form, about, blocks, errors, top)
        else:
            note = f"of the images called unknown, at most {fdr:g} are known ones, on average"
            write_answers(out, form, about | {"note": note}, decide_together(blocks, fdr), errors, top)
    if not as_json:
        print("".join(f"{line}\n" for line in error_lines(errors)), end="", file=sys.stderr)
    if errors:
        raise DataError(f"{len(errors):,} of {answered + len(errors):,} could not be answered")


@app.command()
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

    from pmal.mining import mine_file

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


@app.command()
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
    from pmal.reporting.audit import audit_run, check_auditable, has_pictures

    run = Path(target)
    if not (run / "config.toml").is_file():
        named = {"data": {"source": target}, "training": {"epochs": epochs}}
        # Nothing is rejected here, so that no image need be kept from the ranking for a threshold.
        usual = ["method=softmax", "ensemble.size=2", "data.held_out=0"]
        config, note = _configure(recipe, named, [*usual, *(assignments or [])], resources)
        out = _outside_data(out or Path("runs") / f"audit-{_run_name(config)}", config)
        _say(note, session)
        run = out / "run"
        check_auditable(run, config)
        pipeline.fit(config, run, session)
    elif recipe or epochs or assignments:
        raise UsageError(f"{target} is a run already: --recipe, --epochs and --set go with a SOURCE only")
    out = out or run / "audit"
    found = audit_run(run, out, session)
    counts = {"images": len(found.samples), "candidates": int(found.candidate_N.sum())}
    counts["prototypes"] = len(found.prototypes)
    if as_json:
        print(json.dumps({"run": str(run), "out": str(out), **counts, "warnings": list(found.warnings)}))
    else:
        print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
        what = "table and contact sheets" if has_pictures(found.samples) else "table"
        print(f"{what}: {out}\nrun folder: {run}")


app.command()(add_class)
app.command()(discover)
app.command()(update)
app.command()(remove_class)
app.command()(history)
app.command()(watch)
app.command()(bench)
app.command()(export)
app.command()(report)
app.command()(serve)
give_plugins(app)


def _open_model(
    run: Path, version: int | None, rule: dict[str, Any], half: bool, session: "Session", top: int
) -> tuple[dict[str, Any], Any]:
    """Return what is shown next to the answers of a run's model, and what gives the answers."""
    from pmal.serving.answers.predict import answer_files, find_model, model_header, open_model

    folder = find_model(run, version)
    model = open_model(folder, session.device, half, **rule)
    return model_header(model, folder), partial(answer_files, model, session=session, top=top)


def _configure(
    recipe: str | None, named: dict[str, Any], assignments: list[str], resources: Resources
) -> tuple[RunConfig, str]:
    """Return defaults, then recipe, `--set` and the options by name; and why this encoder was chosen."""
    given = merge(*(checked(parse_assignment(text)) for text in assignments), _given(named))
    if recipe is not None and recipe != OWN:
        checked(read_recipe(recipe), f"recipe {recipe}: ")

    from pmal._runtime.devices import choose_device
    from pmal.data.sources.readers import absolute_source, is_named, open_source
    from pmal.defaults import complete_settings

    source = _source(given)
    own = None if is_named(source) else lambda: open_source(source, resources.data_root).train
    settings, note = complete_settings(given, recipe, own, choose_device(resources.device).type)
    return build(RunConfig, merge(settings, {"data": {"source": absolute_source(_source(settings))}})), note


def _say(note: str, session: "Session") -> None:
    if note:
        session.display.say(note)


def _source(settings: dict[str, Any]) -> str:
    data = settings.get("data", {})
    return str(data.get("source", "sample")) if isinstance(data, dict) else "sample"


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return only what the user gave: None means the recipe or the default decides."""
    nested = {k: _given(v) if isinstance(v, dict) else v for k, v in settings.items()}
    return {k: v for k, v in nested.items() if v is not None and v != {}}


def _run_name(config: RunConfig) -> str:
    words = [Path(config.data.source).name, config.method, config.data.family, str(config.data.split)]
    name = "-".join([*words, config.encoder.name, f"seed{config.seed}"]).replace("/", "-")
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def _outside_data(out: Path, config: RunConfig) -> Path:
    from pmal.data.sources.readers import check_outside

    check_outside(out, config.data.source)
    return out


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


def _print_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    from pmal.reporting.tables import run_table

    print(json.dumps(metrics) if as_json else run_table(metrics))
