"""The command `pmal predict`, of a run or of an exported file."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.commands.export import open_exported
from pmal.commands.options import (
    AcceptOption,
    DeviceOption,
    HalfOption,
    JsonOption,
    PerClassOption,
    ScoreOption,
    ThresholdOption,
    start_display,
    start_session,
)
from pmal.config import Resources
from pmal.errors import DataError, UsageError

if TYPE_CHECKING:
    from pmal._runtime.session import Session
    from pmal.serving.answers.image_files import BadFile


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
        about, answer = _open_model(run, version, rule, half, session, top, fdr)

    from pmal.serving.answers.answer_rows import decide_together, fdr_note
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
            together = decide_together(blocks, fdr)
            write_answers(out, form, about | {"note": fdr_note(together, fdr)}, together, errors, top)
    if not as_json:
        print("".join(f"{line}\n" for line in error_lines(errors)), end="", file=sys.stderr)
    if errors:
        raise DataError(f"{len(errors):,} of {answered + len(errors):,} could not be answered")


def _open_model(
    run: Path,
    version: int | None,
    rule: dict[str, Any],
    half: bool,
    session: "Session",
    top: int,
    fdr: float | None,
) -> tuple[dict[str, Any], Any]:
    """Return what is shown next to the answers of a run's model, and what gives the answers."""
    from pmal.serving.answers.answering import answer_files, find_model, model_header, open_model

    folder = find_model(run, version)
    model = open_model(folder, session.device, half, **rule)
    if fdr is not None and model.most_known_scores:
        from pmal.rejection.calibration.thresholds import check_fdr

        check_fdr(fdr, model.most_known_scores)
    return model_header(model, folder), partial(answer_files, model, session=session, top=top)
