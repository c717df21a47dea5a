"""What the commands share: options by type, help texts from the settings, and how a command starts."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pmal._runtime.processes.launch import refuse_ranks
from pmal.config import (
    OWN,
    DataConfig,
    EncoderConfig,
    MiningConfig,
    Resources,
    RunConfig,
    TrainingConfig,
    build,
    field_help,
    merge,
    parse_assignment,
    read_recipe,
    to_settings,
)
from pmal.errors import UsageError
from pmal.plugins import load_plugin
from pmal.run.stages import STAGE_NAMES

if TYPE_CHECKING:
    from pmal._runtime.progress import Display
    from pmal._runtime.session import Session

DATA_HELP, TRAINING_HELP, RESOURCES_HELP = map(field_help, (DataConfig, TrainingConfig, Resources))
RUN_HELP, ENCODER_HELP, MINING_HELP = map(field_help, (RunConfig, EncoderConfig, MiningConfig))

SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help=DATA_HELP["source"])]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `pmal fit` left.")]
DataRootOption = Annotated[str | None, typer.Option(help=RESOURCES_HELP["data_root"])]
DeviceOption = Annotated[str, typer.Option(help=RESOURCES_HELP["device"])]
WorkersOption = Annotated[int, typer.Option(min=0, help=RESOURCES_HELP["workers"])]
MemoryOption = Annotated[float, typer.Option(min=0, help=RESOURCES_HELP["memory_limit"])]
CheckpointOption = Annotated[float, typer.Option(min=0, help=RESOURCES_HELP["checkpoint_seconds"])]
CacheOption = Annotated[str | None, typer.Option(metavar="FOLDER", help=RESOURCES_HELP["cache"])]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="STAGE", help=f"Do this stage and all after it again: {', '.join(STAGE_NAMES)}."
    ),
]
OnlyOption = Annotated[
    str | None, typer.Option(metavar="STAGE", help="Stop after this stage; those before it must be done.")
]
ScoreOption = Annotated[str | None, typer.Option(help="Reject by another score.")]
AcceptOption = Annotated[float | None, typer.Option(help="Share of known images to accept.")]
PerClassOption = Annotated[
    bool | None, typer.Option("--per-class/--global", help="A threshold per class, or one for all.")
]
ThresholdOption = Annotated[float | None, typer.Option(help="Reject above this score, for all classes.")]
HalfOption = Annotated[
    bool, typer.Option("--half", help="Compute in float16 on a GPU: faster, scores to about three digits.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other setting: section.field=value. May be repeated."),
]
GO_ON = "run the same command again to resume where it stopped"
AGAIN = "nothing was written"
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


class OneLineGroup(TyperGroup):
    """The commands, with wrong words of the command line told in one line, as every other mistake is."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        """Return what the words before the name of a command say."""
        with _one_line():
            return super().make_context(*words, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        with _one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Turn the errors of typer's parser, whose classes differ between its versions, into a UsageError."""
    try:
        yield
    except Exception as error:
        # A group without a command is answered with its help, which comes as an error in some versions.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = " ".join(error.format_message().split()).rstrip(".")
        context = getattr(error, "ctx", None)
        names = [] if context is None else context.command_path.split()[len(_program(context)) :]
        command = " ".join(["pmal", *names])
        raise UsageError(f"{message[:1].lower()}{message[1:]}: see `{command} --help`") from None


def _program(context: Any) -> list[str]:
    """Return what stands before the names of commands, however the program was started."""
    return str(context.find_root().info_name).split()


def _show_version(asked: bool) -> None:
    if asked:
        from pmal import __version__

        print(f"pmal {__version__}")
        raise typer.Exit


def general(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Take the options that stand before the name of a command; their help is that of `pmal`."""


def give_plugins(app: typer.Typer) -> None:
    """Give every command of an app `--plugin MODULE`, imported before the command looks at anything."""
    for command in app.registered_commands:
        command.callback = _with_plugins(command.callback)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            give_plugins(inner)
            if inner.registered_callback and inner.registered_callback.invoke_without_command:
                inner.registered_callback.callback = _with_plugins(inner.registered_callback.callback)


def _load_plugins(modules: list[str] | None) -> None:
    for module in modules or ():
        load_plugin(module)


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        is_eager=True,
        callback=_load_plugins,
        help="A module that registers methods, scores, encoders or sources. May be repeated.",
    ),
]


def _with_plugins(command: Callable[..., Any] | None) -> Callable[..., Any]:
    assert command is not None

    @functools.wraps(command)
    def run(*words: Any, plugin: list[str] | None = None, **options: Any) -> Any:
        return command(*words, **options)

    own = inspect.signature(command)
    option = inspect.Parameter(
        "plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PluginOption
    )
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "plugin": PluginOption}
    return run


def checked(settings: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Return the settings if they are right by themselves: others above them would hide what is wrong."""
    try:
        build(RunConfig, settings)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None
    return settings


def start_session(resources: Resources, quiet: bool, advice: str = GO_ON) -> "Session":
    """Return a session: devices checked, display chosen, signals turned into an end with the advice."""
    display = start_display(quiet, advice)

    from pmal._runtime.session import open_session

    return open_session(resources, display)


def start_display(quiet: bool, advice: str) -> "Display":
    """Return the display of a session for work that needs no device, and no torch."""
    from pmal._runtime.progress import choose_display
    from pmal._runtime.signals import raise_on_signals

    refuse_ranks()
    raise_on_signals(advice)
    return choose_display(quiet)


def start_shared_session(resources: Resources, quiet: bool, advice: str = GO_ON) -> "Session":
    """Return a session for commands whose work several processes of torchrun can share."""
    from pmal._runtime.progress import choose_display
    from pmal._runtime.session import open_shared_session
    from pmal._runtime.signals import raise_on_signals

    raise_on_signals(advice)
    return open_shared_session(resources, choose_display(quiet))


def configure(
    recipe: str | None,
    named: dict[str, Any],
    assignments: list[str],
    resources: Resources,
    kept: RunConfig | None = None,
) -> tuple[RunConfig, str]:
    """Return defaults, then recipe, `--set` and the options by name; and why this encoder was chosen.

    Args:
        recipe: its name or file.
        named: the options by name.
        assignments: of `--set`.
        resources: of this machine.
        kept: the settings of a run that is done again in part. They stand in for defaults and recipe.
    """
    given = merge(*(checked(parse_assignment(text)) for text in assignments), _given(named))
    if recipe is not None and recipe != OWN:
        checked(read_recipe(recipe), f"recipe {recipe}: ")

    from pmal._runtime.devices import choose_device
    from pmal.data.sources.readers import absolute_source, is_named, open_source
    from pmal.defaults import complete_settings, with_given

    if kept is not None and recipe is None:
        settings = with_given(to_settings(kept), given)
        return build(RunConfig, merge(settings, {"data": {"source": absolute_source(_source(settings))}})), ""
    source = _source(given)
    absolute_source(source)  # refuses what is no path, which is opened here to choose an encoder
    own = None if is_named(source) else lambda: open_source(source, resources.data_root).train
    settings, note = complete_settings(given, recipe, own, choose_device(resources.device).type)
    return build(RunConfig, merge(settings, {"data": {"source": absolute_source(_source(settings))}})), note


def say_if_any(note: str, session: "Session") -> None:
    """Say a note, if there is one."""
    if note:
        session.display.say(note)


def run_name(config: RunConfig) -> str:
    """Return the name of a run's folder in `runs/`, if the user names none."""
    words = [Path(config.data.source).name, config.method, config.data.family, str(config.data.split)]
    name = "-".join([*words, config.encoder.name, f"seed{config.seed}"]).replace("/", "-")
    return "".join(letter if letter.isprintable() else "_" for letter in name)


def outside_data(out: Path, config: RunConfig) -> Path:
    """Return the folder of a run, which must not lie in that of its images."""
    from pmal.data.sources.readers import check_outside

    check_outside(out, config.data.source)
    return out


def _source(settings: dict[str, Any]) -> str:
    data = settings.get("data", {})
    return str(data.get("source", "sample")) if isinstance(data, dict) else "sample"


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return only what the user gave: None means the recipe or the default decides."""
    nested = {k: _given(v) if isinstance(v, dict) else v for k, v in settings.items()}
    return {k: v for k, v in nested.items() if v is not None and v != {}}
