"""The quality of every mined sample, as stored by a run: N numbers computed from N x N distances."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.tensors import delete_tensors, load_tensors, save_tensors
from pmal.errors import DataError

FILE = "quality"
"""File name in the folder of a run, next to the prototypes."""
_FORMAT = "pmal-quality-1"


@dataclass(frozen=True, eq=False)
class SampleQuality:
    """Log of the quality of all samples, by id."""

    ids: Tensor
    """Ids of the samples, ascending (N,)."""
    log_r: Tensor
    """Float64 (N,)."""
    rule: str
    """Name in `QUALITY_RULES`: topology is the robustness r."""
    notes: tuple[str, ...] = ()
    """Warnings shown to the user when it was measured."""

    def __post_init__(self) -> None:
        ascending = bool((self.ids[1:] > self.ids[:-1]).all())
        right = self.ids.dtype == torch.int64 and self.log_r.dtype == torch.float64
        if not (ascending and right and self.ids.ndim == 1 and self.ids.shape == self.log_r.shape):
            raise DataError("sample quality: ids are not ascending, or the numbers are not one for each id")

    def of(self, ids: Sequence[int] | NDArray[np.int64] | Tensor) -> Tensor | None:
        """Return log r in the order of these ids (N,); None unless they are exactly the known samples.

        >>> found = SampleQuality(torch.tensor([2, 5]), torch.tensor([-1.0, -2.0]).double(), "topology")
        >>> found.of([5, 2]), found.of([5])
        (tensor([-2., -1.], dtype=torch.float64), None)
        """
        ids_N = torch.as_tensor(ids)
        order = ids_N.argsort()
        if not torch.equal(ids_N[order], self.ids):
            return None
        log_N = torch.empty_like(self.log_r)
        log_N[order] = self.log_r
        return log_N

    def save(self, path: Path, ranks: Ranks = ALONE) -> None:
        """Write PATH.json and PATH.safetensors, under these names even if a killed process left others."""
        delete_tensors(path, ranks)
        about = {"format": _FORMAT, "rule": self.rule, "notes": list(self.notes)}
        save_tensors(path, {"ids": self.ids, "log_r": self.log_r}, about, ranks)

    @classmethod
    def load(cls, path: Path, ranks: Ranks = ALONE) -> "SampleQuality":
        """Return the quality that `save` wrote.

        Raises:
            DataError: the file is damaged or not a sample quality.
        """
        tensors, about = load_tensors(path, ranks)
        if about.get("format") != _FORMAT or set(tensors) != {"ids", "log_r"}:
            raise DataError(
                f"{path}.json: not the quality of samples: `pmal fit --from mining` writes it again"
            )
        return cls(tensors["ids"], tensors["log_r"], str(about["rule"]), tuple(about["notes"]))
