"""The released bundle: a folder that holds a finished model and can be sent to anybody.

    model.json               what the model is
    weights.safetensors      the network
    reference.safetensors    prototypes, training embeddings and pictures, if the model has them
    calibration.safetensors  scores of held-out images, if there were any
    typicality.safetensors   what training images look like to the layers, if the network sees images
    sha256.json              the checksum of every file above

No file of it can run code. Each tensor file carries the checksum of the model.json that it was written with,
and model.json a fingerprint of all tensors, so that files of two models never mix.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from pmal._runtime.files import sha256, write_json
from pmal._runtime.tensors import write_safetensors
from pmal.errors import DataError, UsageError
from pmal.rejection.bundle.contents import assemble, collect, tensor_files
from pmal.rejection.bundle.layout import (
    JSON_LIMIT,
    RECORD,
    SUMS,
    parse_json,
    read_sums,
    read_verified,
    replaced_folder,
)
from pmal.rejection.bundle.record import Record, describe, read_record
from pmal.rejection.model import OpenSetModel


def save_model(folder: Path, model: OpenSetModel) -> None:
    """Write the bundle; an older one in its place is replaced when the new one is complete.

    A process that is killed leaves the old bundle or the new one. Between two renames it leaves neither in
    place, but the old one next to it as `.NAME.old`: the next save puts that back, and so may a person.
    """
    tensors = collect(model)
    content = describe(model, _fingerprint(tensors))
    _check_text(content)
    try:
        # What could not be loaded again is not saved.
        assemble(read_record(content), tensors, folder)
    except DataError as error:
        raise DataError(f"not saved: {error}") from None
    with replaced_folder(folder) as new:
        write_json(new / RECORD, content)
        for name, named in tensors.items():
            # One entry of metadata: the order of several would change from one save to the next.
            write_safetensors(new / name, named, {RECORD: sha256(new / RECORD)})
        write_json(new / SUMS, {name: sha256(new / name) for name in (RECORD, *tensors)})


def load_model(folder: Path, device: torch.device, half: bool = False) -> OpenSetModel:
    """Return the model of a bundle, ready for use.

    Reject by name what is missing, damaged, foreign or newer.
    """
    sums = read_sums(folder)
    content, record = _read_record(folder, sums)
    names = tensor_files(record)
    for name in sums:
        if name not in (RECORD, *names):
            raise DataError(f"{folder / SUMS}: lists {name!r}, which is no part of this model")
    tensors = {name: _read_tensors(folder, name, sums) for name in names}
    model = assemble(record, tensors, folder)
    if _fingerprint(tensors) != content["fingerprint"]:
        raise DataError(
            f"{folder / RECORD}: its fingerprint is not that of the tensors: copy or save the model again"
        )
    model.classifier.to(device)
    return model.in_half_precision() if half else model


def describe_model(folder: Path) -> dict[str, Any]:
    """Return what model.json says of the model, checked; no tensor is read."""
    content, _ = _read_record(folder, read_sums(folder))
    return content


def _read_record(folder: Path, sums: Mapping[str, str]) -> tuple[dict[str, Any], Record]:
    path = folder / RECORD
    content = parse_json(path, read_verified(folder, RECORD, sums, JSON_LIMIT))
    try:
        return content, read_record(content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _read_tensors(folder: Path, name: str, sums: Mapping[str, str]) -> dict[str, Tensor]:
    path, data = folder / name, read_verified(folder, name, sums)
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise DataError(f"{path}: not a safetensors file that pmal wrote ({error})") from None
    if header.get("__metadata__", {}).get(RECORD) != sums[RECORD]:
        raise DataError(
            f"{path}: belongs to another model than {RECORD}: copy or save the whole folder again"
        )
    return tensors


def _check_text(content: Mapping[str, Any]) -> None:
    """Fail before any file is written."""
    try:
        size = len(json.dumps(content, indent=2, ensure_ascii=False).encode())
    except (TypeError, ValueError) as error:
        raise UsageError(f"not saved: {RECORD} cannot hold this model ({error})") from None
    if size >= JSON_LIMIT:
        raise UsageError(
            f"not saved: {RECORD} would be larger than {JSON_LIMIT >> 20} MiB: save fewer prototypes"
        )


def _fingerprint(tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return what tells this model from every other, whatever their descriptions have in common."""
    digest = hashlib.sha256()
    for file, named in tensors.items():
        for name, tensor in sorted(named.items()):
            digest.update(f"{file} {name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
