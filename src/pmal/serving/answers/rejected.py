"""The images that a model rejects, with their embeddings; and images by their names in a table.

N images of the pile, D channels of their embeddings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._runtime.session import Session
from pmal.data.rows.table import check_width, read_rows
from pmal.data.samples import NOT_FINITE, Pixels, Samples, Vectors, VectorStore
from pmal.data.sources.folder import FileStore
from pmal.errors import DataError
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.grouping import find_groups
from pmal.rejection.open_world.space import answer_with_space
from pmal.reporting.page.discovery.pile import SortedPile
from pmal.serving.answers.answering import takes_embeddings
from pmal.serving.answers.image_files import BadFile
from pmal.serving.answers.row_files import answer_paths

_ROW = re.compile(r"(.+)\[(\d+)\]", re.S)


@dataclass(frozen=True)
class NamedRows(VectorStore):
    """Rows of several files, each by its file and its number there."""

    names: tuple[str, ...] = ()

    def name(self, row: int) -> str:
        """Return the file of a row and its number in it."""
        return self.names[row]


def sort_rejected(
    model: OpenSetModel,
    paths: Sequence[str],
    errors: list[BadFile],
    session: Session,
    smallest: int | None = None,
    everything: bool = False,
) -> tuple[SortedPile, int]:
    """Return the pile of what a model rejects, sorted into groups, and how many images were looked at.

    What cannot be read is added to `errors`. everything: put what it names into the pile as well.
    """

    def answer(images: Pixels | Vectors, names: list[str]) -> list[dict[str, Any]]:
        answers, z_BD = answer_with_space(model, torch.from_numpy(images))
        rows = zip(names, answers.labels.tolist(), z_BD, images, strict=True)
        of_rows = takes_embeddings(model)
        return [
            {"name": name, "z": z_D, "row": image.ravel() if of_rows else None}
            if everything or label < 0
            else {}
            for name, label, z_D, image in rows
        ]

    blocks = list(answer_paths(paths, model.classifier.spec.image_shape, errors, session.display, answer))
    seen = [entry for block in blocks for entry in block]
    pile = [entry for entry in seen if entry]
    groups = find_groups(np.stack([entry["z"] for entry in pile]), smallest) if pile else []
    return SortedPile(_samples(model, pile), groups, model.class_names), len(seen)


def samples_by_name(model: OpenSetModel, names: Sequence[str]) -> list[str] | VectorStore:
    """Return what the names in a table stand for: image files, or rows of files of embeddings.

    Raises:
        DataError: a row does not exist, or is not finite.
    """
    if not takes_embeddings(model):
        return list(names)
    stores: dict[str, VectorStore] = {}
    vectors = [_row(name, stores, model) for name in names]
    return NamedRows("", np.stack(vectors), None, tuple(names))


def _row(name: str, stores: dict[str, VectorStore], model: OpenSetModel) -> NDArray[np.float32]:
    found = _ROW.fullmatch(name)
    if not found:
        raise DataError(f"{name}: this model takes embeddings: name rows, such as features.npz[3]")
    path, row = found[1], int(found[2])
    if path not in stores:
        stores[path] = read_rows(Path(path))
        check_width(stores[path], model.classifier.spec.channels)
    if row >= len(stores[path]):
        raise DataError(f"{name}: there are {len(stores[path])} rows in this file: check the number")
    vector: NDArray[np.float32] = stores[path].vectors[row]
    if not np.isfinite(vector).all():
        raise DataError(f"{name}: {NOT_FINITE}: leave the row out or embed it again")
    return vector


def _samples(model: OpenSetModel, pile: Sequence[dict[str, Any]]) -> Samples:
    names = [entry["name"] for entry in pile]
    store: FileStore | NamedRows = FileStore("", names)
    if takes_embeddings(model):
        width = model.classifier.spec.channels
        rows = np.array([entry["row"] for entry in pile], np.float32).reshape(-1, width)
        store = NamedRows("", rows, None, tuple(names))
    return Samples.whole(store, np.zeros(len(names), np.int64), ("",))
