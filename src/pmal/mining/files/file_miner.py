"""Mining on embeddings of any model: reads a file, returns prototypes and r of every sample."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmal._runtime.devices import choose_device
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.progress import Display, Silent, notes_of_warnings
from pmal._runtime.seeds import stream
from pmal.config import MiningConfig
from pmal.data.rows.table import naming
from pmal.errors import UsageError
from pmal.mining._arrays import Space, check_count, check_spaces
from pmal.mining.candidates import select_candidates
from pmal.mining.files.embedding_file import Embeddings, read_embeddings
from pmal.mining.files.linear_heads import fit_head
from pmal.mining.files.mined_files import OutputFiles, write_prototypes_csv, write_samples_csv
from pmal.mining.miner import check_settings, mine_rated, rate_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions, count_pairs

_COMPARING = ("topology", "ensemble")


@dataclass(frozen=True, eq=False)
class MinedFile:
    """The result of mining a file, and the files it was written to."""

    prototypes: PrototypeSet
    ids: Tensor
    """Ids of all samples, ascending (N,)."""
    log_r: Tensor
    """Log of each sample's quality, in the order of the ids, float64 (N,)."""
    candidates: Tensor
    """Which samples are candidates, bool (N,)."""
    spaces: int
    head_accuracies: tuple[float, ...]
    """Share of samples that each fitted head classifies correctly; empty if the file has heads."""
    warnings: tuple[str, ...]
    files: tuple[Path, ...]

    def summary(self) -> dict[str, Any]:
        """Return the result in numbers, ready for JSON."""
        sizes_K = torch.bincount(self.prototypes.labels, minlength=self.prototypes.num_classes)
        return {
            "samples": len(self.ids),
            "classes": self.prototypes.num_classes,
            "spaces": self.spaces,
            "head_accuracies": list(self.head_accuracies),
            "candidates": int(self.candidates.sum()),
            "prototypes": len(self.prototypes),
            "fewest_per_class": int(sizes_K.min()),
            "most_per_class": int(sizes_K.max()),
            "warnings": list(self.warnings),
            "files": [str(file) for file in self.files],
        }


def mine_file(
    path: str | PathLike[str],
    out: str | PathLike[str],
    settings: MiningConfig | None = None,
    *,
    heads: int = 2,
    seed: int = 0,
    device: str = "auto",
    force: bool = False,
    display: Display | None = None,
    ranks: Ranks = ALONE,
) -> MinedFile:
    """Read embeddings, mine prototypes, and write OUT.json and two CSV files.

    `read_embeddings` describes the file. Everything that can be rejected is rejected before the work begins.

    Args:
        path: the file of embeddings.
        out: the files to write: OUT, OUT.json or OUT.csv.
        settings: the rules of mining; by default `MiningConfig()`.
        heads: if the file has no heads, at least this many linear ones are fitted, and one for each space;
            with more heads than spaces, spaces are used in turn.
        seed: seeds the fitted heads and the random rules.
        device: auto, cpu or cuda.
        force: replace existing files.
        display: shows progress and notes.
        ranks: processes that share the topology; the first one writes.

    Raises:
        UsageError: an option is wrong, or files exist and `force` is not set.
        DataError: the file of embeddings cannot be used.
    """
    source, files = Path(path), OutputFiles.named(out)
    settings, display = settings or MiningConfig(), display or Silent()
    check_settings(settings)
    options = QualityOptions(settings, seed, device=choose_device(device), ranks=ranks)
    ranks.by_first(lambda: files.prepare(source, force))

    data = read_embeddings(source)
    if data.ignored:
        display.say(f"{source}: not used: {', '.join(data.ignored)}")
    _check_enough_spaces(source, data, heads, settings.quality)
    with naming(source), _gpu_memory(), notes_of_warnings(display) as notes:
        spaces, accuracies = _spaces(data, heads, options, display)
        with display.stage("topology", count_pairs(len(data.ids), len(spaces), settings), "pairs") as advance:
            reporting = replace(options, report=advance)
            quality = rate_spaces(spaces, data.labels, reporting, ids=data.ids)
        named = {"class_names": data.class_names, "files": data.paths}
        prototypes = mine_rated(spaces[0], data.labels, quality, options, ids=data.ids, **named)
    log_r, epsilon, per_class = quality.log_r, settings.epsilon, settings.per_class
    candidates = select_candidates(log_r, data.labels, epsilon=epsilon, at_least=per_class)
    rows = log_r, candidates, data.labels, data.ids, prototypes, data.paths
    json_file, prototypes_csv, samples_csv = files.readable
    ranks.by_first(lambda: write_samples_csv(samples_csv, *rows))
    ranks.by_first(lambda: write_prototypes_csv(prototypes_csv, prototypes))
    prototypes.save(json_file, ranks)
    return MinedFile(
        prototypes, data.ids, log_r, candidates, len(spaces), accuracies, tuple(notes), files.readable
    )


def _check_enough_spaces(source: Path, data: Embeddings, heads: int, quality: str) -> None:
    check_count(heads, "heads")
    needed = 2 if quality in _COMPARING else 1
    if data.heads and len(data.z) < needed:
        raise UsageError(
            f"quality={quality} compares two spaces, {source} has one: add z_1 and W_1, or leave out the "
            "weights, and heads are fitted"
        )
    if not data.heads and max(heads, len(data.z)) < needed:
        raise UsageError(f"heads={heads}: quality={quality} compares two or more")


def _spaces(
    data: Embeddings, heads: int, options: QualityOptions, display: Display
) -> tuple[list[Space], tuple[float, ...]]:
    """Return embeddings and heads on the device, and the accuracies of the heads that had to be fitted."""
    z = [z_ND.to(options.device) for z_ND in data.z]
    if data.heads:
        given = zip(z, data.heads, strict=True)
        return check_spaces([(z_ND, weight, bias) for z_ND, (weight, bias) in given]), ()
    z = [z[u % len(z)] for u in range(max(heads, len(z)))]
    fitted = []
    with display.stage("fitting linear heads", len(z), "heads") as advance:
        for u, z_ND in enumerate(z):
            fitted.append(fit_head(z_ND, data.labels, data.num_classes, stream(options.seed, "head", u)))
            options.ranks.copy_first([fitted[-1].weight, fitted[-1].bias])  # equal to the last bit
            advance(1)
    spaces = [(z_ND, head.weight, head.bias) for z_ND, head in zip(z, fitted, strict=True)]
    return check_spaces(spaces), tuple(head.accuracy for head in fitted)


@contextmanager
def _gpu_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise UsageError("the embeddings do not fit into the GPU's memory: use --device cpu") from None
