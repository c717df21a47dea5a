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
    from pmal.estimator import OpenSetClassifier
    from pmal.rejection.new_class import AddedClass


def add_class(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the folder of a model.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the new class.")],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE|FOLDER", help="Images of the class: files, folders of image files."),
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

    from pmal.serving.image_files import find_files
    from pmal.serving.predict import find_model

    folder = find_model(run)
    folder = folder.resolve() if folder.name in ("", "..") else folder
    files, bad = find_files(images)
    if bad:
        raise DataError(f"{bad[0].name}: {bad[0].reason}")
    effect = _add(folder, name, files, str(session.device))
    stale = _older_files(folder)
    if as_json:
        found: dict[str, Any] = asdict(effect) | {"rule_changed": effect.rule_changed}
        print(json.dumps({"model": str(folder), "images": len(files), **found, "older": stale}))
    else:
        print(f"{effect}\nmodel: {folder}")
        if stale:
            print(f"still of the model before: {', '.join(stale)}")


def _add(folder: Path, name: str, files: list[str], device: str) -> "AddedClass":
    """Replace the model in the folder, and what stands beside it of its classes and checksums."""
    from pmal._runtime.runs import CONFIG, only_writer, seal_again
    from pmal.estimator import RECORD, OpenSetClassifier
    from pmal.serving.bundle import save_model
    from pmal.serving.predict import check_takes_images

    above = folder.resolve().parent
    of_run, of_classifier = ((above / file).is_file() and folder.name == "model" for file in (CONFIG, RECORD))
    with only_writer(above) if of_run else contextlib.nullcontext():
        found = OpenSetClassifier.load(above if of_classifier else folder, device=device)
        check_takes_images(found.model_)
        effect = found.add_class(files, _label(found, name))
        if of_classifier:
            found.save(above)
        else:
            save_model(folder, found.model_)
        if of_run:
            seal_again(above, "model")
    return effect


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
