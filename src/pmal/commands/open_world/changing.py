"""What commands that change a finished model share: it is loaded, changed, and saved as a new version."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pmal.errors import UsageError

if TYPE_CHECKING:
    from pmal.estimator.open_set import OpenSetClassifier
    from pmal.rejection.bundle.versions import Version

ModelArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the folder of a model.")]
Effect = TypeVar("Effect")


@dataclass(frozen=True)
class Place:
    """Where a model lies, and what it is a part of."""

    folder: Path
    of_run: bool
    of_classifier: bool

    @property
    def above(self) -> Path:
        """Return the folder of the run or the classifier."""
        return self.folder.resolve().parent

    def older(self) -> list[str]:
        """Return the files next to the model that were made of it as it was before."""
        exported = [f"{self.folder.name}.onnx", f"{self.folder.name}.md"]
        measured = ["metrics.json", "report.html"] if self.folder.name == "model" else []
        beside = [self.folder.with_name(file) for file in exported + measured]
        return [str(file) for file in beside if file.is_file()]


def find_place(run: Path) -> Place:
    """Return where the model of a run, a classifier or a bundle lies."""
    from pmal.estimator.open_set import RECORD
    from pmal.run.run_folder import CONFIG
    from pmal.serving.answers.answering import find_model

    folder = find_model(run)
    folder = folder.resolve() if folder.name in ("", "..") else folder
    above = folder.resolve().parent
    of_run, of_classifier = ((above / file).is_file() and folder.name == "model" for file in (CONFIG, RECORD))
    return Place(folder, of_run, of_classifier)


@contextlib.contextmanager
def only_change(place: Place) -> Iterator[None]:
    """Keep other processes out of a run while its model changes, and renew the checksums of the run."""
    from pmal.rejection.bundle.versions import current_version
    from pmal.run.run_folder import only_writer

    with only_writer(place.above) if place.of_run else contextlib.nullcontext():
        if place.of_run and current_version(place.folder):
            _seal(place.above)  # a command that failed after its change may have left the old checksums
        yield
        if place.of_run:
            _seal(place.above)


def _seal(run: Path) -> None:
    from pmal.run.run_folder import seal_again

    for folder in ("model", "versions"):
        seal_again(run, folder)


def change_model(
    place: Place, device: str, act: Callable[["OpenSetClassifier"], Effect]
) -> tuple["Version", Effect]:
    """Change a model, and save it as a new version: all of it, or nothing if anything fails.

    Args:
        place: where the model is.
        device: to compute on.
        act: changes the classifier; what it returns comes back.
    """
    from pmal.estimator.open_set import RECORD, OpenSetClassifier
    from pmal.rejection.bundle.versions import check_changeable, digest_of, save_version

    check_changeable(place.folder)
    with only_change(place):
        before = digest_of(place.folder)
        found = OpenSetClassifier.load(place.above if place.of_classifier else place.folder, device=device)
        effect = act(found)
        beside = {RECORD: found.record()} if place.of_classifier else {}
        version = save_version(place.folder, found.model_, "; ".join(found.changes_), before, beside)
    return version, effect


def class_label(classifier: "OpenSetClassifier", name: str) -> str | int:
    """Return a name as a label of the same kind as those of the classes that are there."""
    if not name.strip():
        raise UsageError("the name of the new class is empty: pass one, such as fox")
    if classifier.classes_.dtype.kind != "i":
        return name
    try:
        return int(name)
    except ValueError:
        raise UsageError(f"class '{name}': the classes of this model are integers: pass one") from None


def tell_change(
    place: Place, version: "Version", about: dict[str, Any], lines: list[str], as_json: bool
) -> None:
    """Print what was changed, which version that is, and what is still of the model before."""
    older = place.older()
    if as_json:
        print(json.dumps({"model": str(place.folder), "version": version.version, "older": older} | about))
        return
    print("\n".join([*lines, f"model: {place.folder} (version {version.version})"]))
    if older:
        print(f"still of the model before: {', '.join(older)}")
