"""Every training image by its robustness: a table for programs, a contact sheet per class for people."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmal._runtime.files import atomic_path, make_folder, write_text
from pmal.config import MiningConfig
from pmal.data.samples import Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.geometry import centered_logits
from pmal.mining import PrototypeSet, mine, select_candidates
from pmal.mining.export import plain_cell
from pmal.reporting.contact_sheet import Row, contact_sheet

COLUMNS = ("class", "rank", "id", "r", "log_r", "candidate", "prototype", "predicted", "name")
PER_ROW = 10


@dataclass(frozen=True)
class Audit:
    """What mining found out about the training samples, by position."""

    samples: Samples
    log_r_N: torch.Tensor
    candidate_N: torch.Tensor
    predicted_N: torch.Tensor
    prototypes: PrototypeSet

    def ranking(self, label: int) -> list[int]:
        """Positions of a class, most robust first; equal ones in the order of their ids."""
        members = np.flatnonzero(self.samples.labels == label)
        order = np.lexsort((self.samples.ids[members], -self.log_r_N.numpy()[members]))
        positions: list[int] = members[order].tolist()
        return positions


def make_audit(samples: Samples, log_r_N: torch.Tensor, first: EmbeddedSet, settings: MiningConfig) -> Audit:
    """Candidates and prototypes for the robustness found; distances and predictions of the first space."""
    labels_N = torch.from_numpy(samples.labels)
    options: dict[str, Any] = {"epsilon": settings.epsilon}
    return Audit(
        samples=samples,
        log_r_N=log_r_N,
        candidate_N=select_candidates(log_r_N, labels_N, at_least=settings.per_class, **options),
        predicted_N=first.logits.argmax(dim=1),
        prototypes=mine(
            log_r_N,
            centered_logits(first.z_ND, first.weight_KD),
            labels_N,
            num_classes=len(samples.class_names),
            per_class=settings.per_class,
            ids=samples.ids,
            class_names=samples.class_names,
            **options,
        ),
    )


def write_audit(audit: Audit, folder: Path, advance: Callable[[int], None]) -> None:
    """audit.csv, and one sheet-*.png per class."""
    make_folder(folder)
    write_text(folder / "audit.csv", audit_table(audit))
    for label, name in enumerate(audit.samples.class_names):
        image = contact_sheet(f"{name}", sheet_rows(audit, label))
        with atomic_path(folder / f"sheet-{label:03d}-{_file_word(name)}.png") as temporary:
            image.save(temporary, format="PNG")
        advance(1)


def audit_table(audit: Audit) -> str:
    """CSV text, by class and rank within the class."""
    chosen = dict(zip(audit.prototypes.ids.tolist(), audit.prototypes.rank.tolist(), strict=True))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = audit.samples.class_names
    for label, name in enumerate(names):
        for rank, position in enumerate(audit.ranking(label)):
            log_r, sample_id = float(audit.log_r_N[position]), int(audit.samples.ids[position])
            writer.writerow(
                [
                    plain_cell(name),
                    rank,
                    sample_id,
                    f"{np.exp(log_r):.6f}",
                    repr(log_r),
                    int(audit.candidate_N[position]),
                    chosen.get(sample_id, ""),
                    plain_cell(names[int(audit.predicted_N[position])]),
                    plain_cell(audit.samples.name(position)),
                ]
            )
    return text.getvalue()


def sheet_rows(audit: Audit, label: int) -> list[Row]:
    """Prototypes in the order of choice, then the most and the least robust images of the class."""
    ranking = audit.ranking(label)
    position_of = {int(audit.samples.ids[position]): position for position in ranking}
    mine = audit.prototypes.ids[audit.prototypes.labels == label].tolist()
    shown = {
        "prototypes": [position_of[sample_id] for sample_id in mine][:PER_ROW],
        "most robust": ranking[:PER_ROW],
        "least robust": ranking[::-1][:PER_ROW],
    }
    return [
        Row(title, [(audit.samples.read(p), f"r {float(audit.log_r_N[p].exp()):.2f}") for p in positions])
        for title, positions in shown.items()
    ]


def _file_word(name: str) -> str:
    """The class name as part of a file name, whatever it consists of."""
    word = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)
    return word[:40] or "_"
