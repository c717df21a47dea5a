"""What evaluation computed from the test images, kept in the run's folder for the report."""

from collections.abc import Mapping
from pathlib import Path

import torch

from pmal._runtime.files import sha256
from pmal._runtime.processes.ranks import Ranks
from pmal._runtime.tensors import delete_tensors, has_tensors, load_tensors, save_tensors
from pmal.data.feeding.parts import Part
from pmal.data.samples import Samples, evenly
from pmal.reporting.evaluation import TESTED, Embedded, Measurement

FILE = "answers"
MOST = 10_000
"""Largest number of test images of each part that are kept. Of more, evenly spaced ones are kept."""
_COLUMNS = ("z", "logits", "typicality")


def keep_answers(found: Measurement, parts: Mapping[str, Part], run: Path, ranks: Ranks) -> None:
    """Write the embeddings, logits and typicality of test images by every network that was measured."""
    tensors = {}
    for name in (name for name in TESTED if name in parts):
        rows = torch.from_numpy(evenly(len(parts[name].samples), MOST))
        tensors[f"{name}.ids"] = torch.from_numpy(parts[name].samples.ids)[rows]
        for network, embedded in enumerate(found.embedded):
            for column, tensor in zip(_COLUMNS, embedded[name], strict=True):
                tensors[f"{name}.{network}.{column}"] = tensor[rows]
    delete_tensors(run / FILE, ranks)  # so that the new file gets the same name
    save_tensors(run / FILE, tensors, {"model": ranks.by_first(lambda: _model_digest(run))}, ranks)


def kept_answers(run: Path, network: int, parts: Mapping[str, Samples]) -> list[Embedded] | None:
    """Return what a network computed from these test images, by part. None: it was not kept.

    Args:
        run: the run's folder.
        network: 0 for the model, 1 for the softmax before it.
        parts: the test images.
    """
    if not has_tensors(run / FILE):
        return None
    tensors, about = load_tensors(run / FILE)
    ids = {name: tensors[f"{name}.ids"].tolist() for name in parts if f"{name}.ids" in tensors}
    same = ids == {name: part.ids.tolist() for name, part in parts.items()}
    if about.get("model") != _model_digest(run) or not same or f"test.{network}.z" not in tensors:
        return None
    return [tuple(tensors[f"{name}.{network}.{column}"] for column in _COLUMNS) for name in parts]


def _model_digest(run: Path) -> str:
    """Return the digest of the bundle's description, which contains the checksums of its tensors."""
    return sha256(run / "model" / "model.json")
