"""The command `pmal update`: answers that somebody corrected, taken into a finished model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal._runtime.text import printable
from pmal.commands.open_world.changing import (
    ModelArgument,
    change_model,
    class_label,
    find_place,
    tell_change,
)
from pmal.commands.options import AGAIN, DeviceOption, JsonOption, start_session
from pmal.config import Resources
from pmal.errors import UsageError

if TYPE_CHECKING:
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.rejection.open_world.renewal_effect import Renewed


def update(
    run: ModelArgument,
    table: Annotated[
        Path,
        typer.Argument(metavar="CORRECTIONS.csv", help="Columns file and name: its true class, or unknown."),
    ],
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Take corrected answers into the model of RUN without training; a new version is saved.

    Half of each class's images become neighbors, and some of them prototypes; the other half sets the
    threshold, with the images held out so far. Says if a full training is advised.
    """
    session = start_session(Resources(device=device), as_json, AGAIN)
    place = find_place(run)

    def act(classifier: "OpenSetClassifier") -> "Renewed":
        return _update(classifier, table)

    version, effect = change_model(place, str(session.device), act)
    about = asdict(effect) | {"train_again": effect.train_again}
    tell_change(place, version, about, [str(effect)], as_json)


def _update(classifier: "OpenSetClassifier", table: Path) -> "Renewed":
    from pmal.data.samples import UNKNOWN_NAME
    from pmal.reporting.page.discovery.names_table import read_names
    from pmal.serving.answers.rejected import samples_by_name

    named = read_names(table)
    known = classifier.model_.class_names
    for name in named:
        if name not in (*known, UNKNOWN_NAME):
            some = ", ".join(map(printable, known[:10]))
            fix = f"use one of {some} or unknown, or make it a class by `pmal add-class`"
            raise UsageError(f"{table}: no class '{name}' in this model: {fix}")
    files = [file for found in named.values() for file in found]
    labels: list[Any] = [
        classifier.unknown_label
        if name == UNKNOWN_NAME and name not in known
        else class_label(classifier, name)
        for name, found in named.items()
        for _ in found
    ]
    return classifier.update(samples_by_name(classifier.model_, files), labels)
