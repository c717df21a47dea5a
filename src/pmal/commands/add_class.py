"""The command `pmal add-class`: one more class for a finished model, from images alone."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.commands.options import AGAIN, DeviceOption, JsonOption, start_session
from pmal.config import Resources
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal.data.samples import VectorStore
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.rejection.new_class import AddedClass


def add_class(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the folder of a model.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new class.")],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|EMBEDDINGS",
            help="Images of the class, or folders of them; for a model of embeddings one file of rows.",
        ),
    ],
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Add a class to the model of RUN, from images of it and without training; the model is saved in place.

    Prints how many prototypes the class has, how many held-out images of the other classes it takes, their
    accuracy before and after, and the rule of rejection where it changed. An image that cannot be read ends
    it, and nothing is written.
    """
    session = start_session(Resources(device=device), as_json, AGAIN)

    from pmal.serving.answers.predict import find_model

    folder = find_model(run)
    folder = folder.resolve() if folder.name in ("", "..") else folder
    effect, count = _add(folder, name, images, str(session.device))
    stale = _older_files(folder)
    if as_json:
        found: dict[str, Any] = asdict(effect) | {"rule_changed": effect.rule_changed}
        print(json.dumps({"model": str(folder), "images": count, **found, "older": stale}))
    else:
        print(f"{effect}\nmodel: {folder}")
        if stale:
            print(f"still of the model before: {', '.join(stale)}")


def _add(folder: Path, name: str, paths: list[str], device: str) -> tuple["AddedClass", int]:
    """Replace the model in the folder, and what stands beside it of its classes and checksums.

    Returns what the class changed, and of how many samples it was made.
    """
    from pmal.estimator.open_set import RECORD, OpenSetClassifier
    from pmal.rejection.bundle.saving import save_model
    from pmal.run.run_folder import CONFIG, only_writer, seal_again
    from pmal.serving.answers.predict import takes_embeddings

    above = folder.resolve().parent
    of_run, of_classifier = ((above / file).is_file() and folder.name == "model" for file in (CONFIG, RECORD))
    with only_writer(above) if of_run else contextlib.nullcontext():
        found = OpenSetClassifier.load(above if of_classifier else folder, device=device)
        if of_run and name in found.model_.class_names:
            seal_again(above, "model")  # it may have been added by a command that failed before this
        samples: Any = _rows(paths) if takes_embeddings(found.model_) else _images(paths)
        effect = found.add_class(samples, _label(found, name))
        if of_classifier:
            found.save(above)
        else:
            save_model(folder, found.model_)
        if of_run:
            seal_again(above, "model")
    return effect, len(samples)


def _images(paths: list[str]) -> list[str]:
    from pmal.serving.answers.image_files import find_files

    files, bad = find_files(paths)
    if bad:
        raise DataError(f"{bad[0].name}: {bad[0].reason}")
    return files


def _rows(paths: list[str]) -> "VectorStore":
    """The rows of one file of embeddings, all of them finite."""
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


def _label(classifier: "OpenSetClassifier", name: str) -> str | int:
    """The name as a label of the same kind as those of the other classes."""
    if not name.strip():
        raise UsageError("the name of the new class is empty: pass one, such as fox")
    if name in classifier.model_.class_names:
        raise UsageError(f"class '{name}' exists already: choose another name")
    if classifier.classes_.dtype.kind != "i":
        return name
    try:
        return int(name)
    except ValueError:
        raise UsageError(f"class '{name}': the classes of this model are integers: pass one") from None


def _older_files(folder: Path) -> list[str]:
    """What lies beside the model and was made of it as it was before."""
    exported = [f"{folder.name}.onnx", f"{folder.name}.md"]
    measured = ["metrics.json", "report.html"] if folder.name == "model" else []
    return [str(folder.with_name(file)) for file in exported + measured if folder.with_name(file).is_file()]
