"""The command `pmal export`, and `pmal predict` of what it wrote, which imports no torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmal.commands.options import (
    AGAIN,
    AcceptOption,
    DataRootOption,
    JsonOption,
    PerClassOption,
    ScoreOption,
    ThresholdOption,
    start_session,
)
from pmal.config import Resources
from pmal.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from pmal.serving.onnx.onnx_model import OnnxModel


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or the model folder in it.")],
    form: Annotated[str, typer.Option("--format", help="onnx.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write. Default: RUN/model.onnx.")
    ] = None,
    score: ScoreOption = None,
    accept: AcceptOption = None,
    per_class: PerClassOption = None,
    threshold: ThresholdOption = None,
    force: Annotated[bool, typer.Option(help="Replace the file and its model card.")] = False,
    data_root: DataRootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the model as one ONNX file, from pixels or embeddings to the decision, and a model card.

    It is compared with PyTorch on test images of the run and on random ones first, and not written if it
    differs. Options that are left out keep their fitted values.
    """
    session = start_session(Resources(device="cpu", data_root=data_root), as_json, AGAIN)

    from pmal.run.run_folder import check_sums
    from pmal.serving.answers.answering import find_model, open_model
    from pmal.serving.onnx.exporting import FORMATS, export_onnx, output_paths, write_export
    from pmal.serving.onnx.model_card import model_card
    from pmal.serving.onnx.parity import images_to_check

    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    folder = find_model(run)
    file, card = output_paths(folder, out, force)
    check_sums(run)
    model = open_model(
        folder, session.device, score=score, accept=accept, per_class=per_class, threshold=threshold
    )
    found = export_onnx(model, images_to_check(model, run, session))
    text = model_card(file.name, found.header, found.parity, _metrics(run), model.reference is not None)
    write_export(file, card, found.data, text)
    parity, differ = found.parity, found.parity.decisions_differ
    if as_json:
        about: dict[str, Any] = {
            "file": str(file),
            "card": str(card),
            "bytes": len(found.data),
            "images": parity.images,
        }
        about |= {"score_difference": parity.score_difference, "decisions_differ": differ}
        print(json.dumps(about))
    else:
        unit = "rows" if found.header.takes_rows else "images"
        print(f"compared with PyTorch on {parity.images:,} {unit}: {differ} decisions differ")
        print(f"{file}: {len(found.data):,} bytes\nmodel card: {card}")


def open_exported(path: Path, device: str, accept: float | None = None, **rule: Any) -> "OnnxModel":
    """Return the model of an exported file, which decides as it was exported, but for the acceptance rate."""
    if any(value is not None for value in rule.values()):
        fix = "give --score, --per-class and --threshold to `pmal export`, or name the run"
        raise UsageError(f"the rule of {path} is part of it: {fix}")
    if device not in ("auto", "cpu"):
        raise UsageError(f"--device {device}: an exported model runs on the CPU: leave --device out")

    from pmal.serving.onnx.onnx_model import OnnxModel

    model = OnnxModel.load(path)
    return model if accept is None else model.with_accept(accept)


def _metrics(run: Path) -> dict[str, Any] | None:
    from pmal._runtime.files import read_json

    path = run / "metrics.json"
    return dict(read_json(path)) if path.is_file() else None
