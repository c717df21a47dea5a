"""Named tensors on disk: a safetensors file and a JSON file that points to it and holds its checksum.

safetensors loads a file with a flipped byte without complaint, so we store a checksum. The JSON file is
written last: it always points to a complete tensor file, whenever the process dies.

If several processes share a run, the first reads and writes for all: the others may see other folders.
"""

import json
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pmal._runtime.files import atomic_path, read_json, sha256, write_json
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.errors import DataError, out_of_memory

_WRITTEN = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_KINDS = tuple(_WRITTEN)
"""As safetensors sorts them, the last first."""


def save_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any], ranks: Ranks = ALONE
) -> None:
    """Write PATH.json, with any JSON `about` the tensors, and the tensor file it names.

    `path` has no suffix. Of several processes, the first one writes.
    """
    ranks.by_first(lambda: _write(path, tensors, about))


def _write(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    old, names = _tensor_file(path), _names(path)
    new = path.parent / names[old is not None and old.name == names[0]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(new, tensors)
    write_json(_json_path(path), {"tensors": new.name, "sha256": sha256(new), "about": dict(about)})
    if old is not None:
        old.unlink(missing_ok=True)


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file, with the bytes that the library of that name would write.

    The library itself ends the process where it gets no memory; here that is a `MemoryError`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    order, begin = sorted(plain, key=lambda name: (-_KINDS.index(plain[name].dtype), name)), 0
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name in order:
        tensor, end = plain[name], begin + plain[name].nbytes
        kind, shape = _WRITTEN[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary, open(temporary, "wb", buffering=0) as file:
        _write_all(file, len(text).to_bytes(8, "little") + text)
        for name in order:
            _write_all(file, plain[name].reshape(-1).view(torch.uint8).numpy().data)


def load_tensors(path: Path, ranks: Ranks = ALONE) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the JSON that `save_tensors` wrote.

    Raises:
        DataError: a file is missing, damaged or not written by pmal.
    """
    return ranks.tensors_of_first(lambda: _read(path))


def read_about(path: Path) -> dict[str, Any]:
    """Return the JSON saved with the tensors, without reading these; empty if there are none."""
    return _entry(path)[2] if has_tensors(path) else {}


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write without a buffer of our own: a file may take less than all at once."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _entry(path: Path) -> tuple[Path, str, dict[str, Any]]:
    """Return the path of the tensor file, its checksum, and the JSON that belongs to the tensors."""
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
    except RuntimeError as error:  # the library's form of an OSError
        if out_of_memory(error):
            raise
        raise OSError(str(error).splitlines()[0]) from error


def has_tensors(path: Path, ranks: Ranks = ALONE) -> bool:
    """Return whether `save_tensors` has written this path."""
    return ranks.by_first(_json_path(path).is_file)


def delete_tensors(path: Path, ranks: Ranks = ALONE) -> None:
    """Delete all files, the pointer first, so that it never points to a missing file."""
    ranks.by_first(lambda: _delete(path))


def _delete(path: Path) -> None:
    _tensor_file(path)  # refuses a pointer that is not ours
    _json_path(path).unlink(missing_ok=True)
    for name in _names(path):  # one that could not be deleted before has no pointer any more
        (path.parent / name).unlink(missing_ok=True)


def _names(path: Path) -> list[str]:
    """Return two alternating names: the file that the JSON points to is never the one being written."""
    return [f"{path.name}.safetensors", f"{path.name}.next.safetensors"]


def _json_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _tensor_file(path: Path) -> Path | None:
    return _entry(path)[0] if has_tensors(path) else None
