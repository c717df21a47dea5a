"""The list of commands. Each is a file of `commands/` and imports torch when it runs: help is instant.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 bad data, 130/143 interrupted after a safe checkpoint.
"""

import typer

from pmal.commands.audit import audit
from pmal.commands.data import data_app
from pmal.commands.evaluate import evaluate
from pmal.commands.export import export
from pmal.commands.fit import fit
from pmal.commands.measuring.bench import bench
from pmal.commands.measuring.benchmark import benchmark_app
from pmal.commands.mine import mine
from pmal.commands.open_world.add_class import add_class
from pmal.commands.open_world.discover import discover
from pmal.commands.open_world.history import history
from pmal.commands.open_world.remove_class import remove_class
from pmal.commands.open_world.update import update
from pmal.commands.open_world.watch import watch
from pmal.commands.options import OneLineGroup, general, give_plugins
from pmal.commands.predict import predict
from pmal.commands.report import report
from pmal.commands.serve import serve

app = typer.Typer(
    cls=OneLineGroup,
    help="Open-set recognition: names what it knows, says unknown to the rest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(general)
app.add_typer(data_app, name="data")
app.add_typer(benchmark_app, name="benchmark")

for command in (
    fit,
    evaluate,
    predict,
    mine,
    audit,
    add_class,
    discover,
    update,
    remove_class,
    history,
    watch,
    bench,
    export,
    report,
    serve,
):
    app.command()(command)
give_plugins(app)
