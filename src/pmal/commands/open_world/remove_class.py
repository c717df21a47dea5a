"""The command `pmal remove-class`: a class less for a finished model."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

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
from pmal.errors import unknown_name

if TYPE_CHECKING:
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.rejection.open_world.removal import RemovedClass


def remove_class(
    run: ModelArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The class, one that was trained or added.")],
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Remove a class from the model of RUN, without training; a new version is saved.

    Its images are unknown from then on.
    """
    session = start_session(Resources(device=device), as_json, AGAIN)
    place = find_place(run)

    def act(classifier: "OpenSetClassifier") -> "RemovedClass":
        if name not in classifier.model_.class_names:
            raise unknown_name("class", name, map(printable, classifier.model_.class_names))
        return classifier.remove_class(class_label(classifier, name))

    version, effect = change_model(place, str(session.device), act)
    tell_change(place, version, asdict(effect), [str(effect)], as_json)
