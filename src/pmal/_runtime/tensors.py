"""Named tensors on disk: a safetensors file and a JSON file that points to it and holds its checksum.

safetensors loads a flipped byte without complaint, so the checksum is ours. The JSON file is written last: it
always points to a complete tensor file, whenever the process dies.

Of several processes that share a run, the first reads and writes, and the others are told: they need not see
the same folders.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pmal._runtime.files import atomic_path, read_json, sha256, write_json
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.errors import DataError, PmalError


def save_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any], ranks: Ranks = ALONE
) -> None:
    """Write PATH.json and the tensor file it names; `about` is any JSON that belongs to the tensors."""
    ranks.by_first(lambda: _write(path, tensors, about))


def _write(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    old = _tensor_file(path)
    # Two names in turn: the file that the JSON points to is never the one being written.
    names = [f"{path.name}.safetensors", f"{path.name}.next.safetensors"]
    new = path.parent / names[old is not None and old.name == names[0]]
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(new) as temporary:
            save_file(plain, temporary)
    except SafetensorError as error:
        raise PmalError(f"{new}: cannot be written ({error})") from None
    write_json(_json_path(path), {"tensors": new.name, "sha256": sha256(new), "about": dict(about)})
    if old is not None:
        old.unlink(missing_ok=True)


def load_tensors(path: Path, ranks: Ranks = ALONE) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read back what `save_tensors` wrote. A missing, damaged or foreign file is refused by name."""
    return ranks.tensors_of_first(lambda: _read(path))


def read_about(path: Path) -> dict[str, Any]:
    """What was saved beside the tensors, without reading these; empty where there are none."""
    return _entry(path)[2] if has_tensors(path) else {}


def _entry(path: Path) -> tuple[Path, str, dict[str, Any]]:
    """The tensor file, its checksum, and what belongs to the tensors."""
    entry = read_json(_json_path(path))
    try:
        return path.parent / Path(entry["tensors"]).name, entry["sha256"], dict(entry["about"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{_json_path(path)}: not written by pmal: delete it to start again") from None


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    file, digest, about = _entry(path)
    if not file.is_file():
        raise DataError(f"{file}: missing, although {_json_path(path).name} names it")
    if sha256(file) != digest:
        raise DataError(f"{file}: damaged (its checksum differs): delete it and {_json_path(path).name}")
    try:
        return load_file(file), about
    except SafetensorError as error:
        raise DataError(f"{file}: not a safetensors file ({error})") from None


def has_tensors(path: Path, ranks: Ranks = ALONE) -> bool:
    return ranks.by_first(_json_path(path).is_file)


def delete_tensors(path: Path, ranks: Ranks = ALONE) -> None:
    """Remove both files, the pointer first, so that no pointer ever dangles."""
    ranks.by_first(lambda: _delete(path))


def _delete(path: Path) -> None:
    file = _tensor_file(path)
    _json_path(path).unlink(missing_ok=True)
    if file is not None:
        file.unlink(missing_ok=True)


def _json_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _tensor_file(path: Path) -> Path | None:
    if not has_tensors(path):
        return None
    entry = read_json(_json_path(path))
    if not isinstance(entry, dict) or "tensors" not in entry:
        raise DataError(f"{_json_path(path)}: not written by pmal: move it away")
    return path.parent / Path(entry["tensors"]).name
