"""The command `pmal add-class`: more classes for a finished model, from images alone."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.commands.open_world.changing import (
    ModelArgument,
    change_model,
    class_label,
    find_place,
    tell_change,
)
from pmal.commands.options import AGAIN, DeviceOption, JsonOption, start_session
from pmal.config import Resources
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal.data.samples import VectorStore
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.rejection.new_class import AddedClass

TABLE = ".csv"
Added = list[tuple["AddedClass", int]]


def add_class(
    run: ModelArgument,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|NAMES.csv", help="The name of the new class, or a table that `pmal discover` made."
        ),
    ],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER|EMBEDDINGS",
            help="Images of the class, or folders of them; for a model of embeddings one file of rows.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Add a class to the model of RUN, or all that a table names, without training; a new version is saved.

    Prints how many prototypes each class has, how many held-out images of the other classes it takes, their
    accuracy before and after, and the rule of rejection if it changed. An image that cannot be read ends
    it, and nothing is written.
    """
    if not images and not name.lower().endswith(TABLE):
        raise UsageError(f"no images of class '{name}': name them, or a table of names ending in {TABLE}")
    session = start_session(Resources(device=device), as_json, AGAIN)
    place = find_place(run)

    def act(classifier: "OpenSetClassifier") -> Added:
        return _add(classifier, name, images) if images else _add_named(classifier, Path(name))

    version, added = change_model(place, str(session.device), act)
    lines = [str(effect) for effect, _ in added]
    tell_change(place, version, _described(added, bool(images)), lines, as_json)


def _described(added: Added, single: bool) -> dict[str, Any]:
    """Return what each class changed: that of a single one as it is, those of a table as a list."""
    found = [
        {"images": count, **asdict(effect), "rule_changed": effect.rule_changed} for effect, count in added
    ]
    return found[0] if single else {"classes": found}


def _add(classifier: "OpenSetClassifier", name: str, paths: list[str]) -> Added:
    from pmal.serving.answers.answering import takes_embeddings

    _check_new(classifier, name)
    samples: Any = _rows(paths) if takes_embeddings(classifier.model_) else _images(paths)
    return [(classifier.add_class(samples, class_label(classifier, name)), len(samples))]


def _add_named(classifier: "OpenSetClassifier", table: Path) -> Added:
    """Add every class that a table names."""
    from pmal.data.samples import UNKNOWN_NAME
    from pmal.reporting.page.discovery.names_table import read_names
    from pmal.serving.answers.rejected import samples_by_name

    named = read_names(table)
    for name in named:
        fix = "images of classes that are there go to `pmal update`, in a table of their own"
        if name in (*classifier.model_.class_names, UNKNOWN_NAME):
            raise UsageError(f"{table}: class '{name}' exists already: {fix}")
        class_label(classifier, name)
    chosen: dict[str, Sequence[str] | VectorStore] = {
        name: samples_by_name(classifier.model_, files) for name, files in named.items()
    }
    return [
        (classifier.add_class(samples, class_label(classifier, name)), len(samples))
        for name, samples in chosen.items()
    ]


def _check_new(classifier: "OpenSetClassifier", name: str) -> None:
    class_label(classifier, name)
    if name in classifier.model_.class_names:
        raise UsageError(f"class '{name}' exists already: choose another name")


def _images(paths: list[str]) -> list[str]:
    from pmal.serving.answers.image_files import find_files

    files, bad = find_files(paths)
    if bad:
        raise DataError(f"{bad[0].name}: {bad[0].reason}")
    return files


def _rows(paths: list[str]) -> "VectorStore":
    """Return the rows of one file of embeddings, all of them finite."""
    import numpy as np

    from pmal.data.rows.formats import is_embedding_file
    from pmal.data.rows.table import read_rows_of_one_class
    from pmal.data.samples import NOT_FINITE

    path = Path(paths[0])
    if len(paths) > 1 or (path.is_file() and not is_embedding_file(path)):
        raise UsageError("this model takes embeddings: name one .npz, .parquet or .safetensors file of rows")
    store = read_rows_of_one_class(path)
    bad = np.flatnonzero(~store.finite(np.arange(len(store))))
    if len(bad):
        raise DataError(f"{store.name(int(bad[0]))}: {NOT_FINITE}: leave the row out or embed it again")
    return store
