"""The network of a bundle, built once its weights are known to be those of a network like it.

A model.json of a few bytes can name a network of any size. So it is built without memory first, and is given
up as soon as it has more weights than the file.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook as on_module
from torch.nn.modules.module import register_module_parameter_registration_hook as on_parameter

from pmal._runtime.memory import check_memory
from pmal._runtime.seeds import seeded
from pmal.ensemble.classifier import Classifier
from pmal.errors import DataError, first_line
from pmal.rejection.bundle.layout import RECORD, WEIGHTS
from pmal.rejection.bundle.record import Record

_PIXEL_BYTES = 512
"""What a network takes for a pixel of its input: 64 channels of float32, and those before them."""
_SPARE, _SPARE_MODULES = 1 << 24, 1000
"""Bytes and modules above twice those of the file: what a factory makes and throws away."""


class _TooLarge(Exception):
    pass


def build_network(record: Record, tensors: Mapping[str, Tensor], folder: Path) -> Classifier:
    """Return the network that model.json describes, with the weights of the file next to it.

    Raises:
        DataError: if one is not the other's, whatever memory the network would take, or if its images
            would take more than there is.
    """
    images = f"{folder / RECORD}: an image of {record.spec.image_size} x {record.spec.image_size} pixels"
    check_memory(record.spec.image_size**2 * _PIXEL_BYTES, images, "train with smaller images")
    _compare(_outline(record, tensors, folder), tensors, folder)
    network = _built(record, tensors, folder, "cpu")
    network = network.use_channels_last() if record.channels_last else network
    _compare(network, tensors, folder)
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError:
        raise _of_another(folder) from None
    if (network.mean.tolist(), network.std.tolist()) != (list(record.mean), list(record.std)):
        raise DataError(f"{folder / RECORD}: its normalization is not that of {WEIGHTS}")
    return network.eval()


def _outline(record: Record, tensors: Mapping[str, Tensor], folder: Path) -> Classifier | None:
    """Return the network without numbers on the device; None if its encoder needs numbers to be built."""
    try:
        return _built(record, tensors, folder, "meta")
    except DataError as error:
        if isinstance(error.__cause__, RuntimeError) and "meta" in str(error.__cause__):
            return None  # what the device cannot do; NotImplementedError is one, too
        raise


def _built(record: Record, tensors: Mapping[str, Tensor], folder: Path, device: str) -> Classifier:
    try:
        with seeded(0, torch.device("cpu")), torch.device(device), _no_larger_than(tensors):
            return Classifier(record.spec)
    except _TooLarge:
        raise _of_another(folder, "it has fewer numbers") from None
    except Exception as error:  # encoders are anybody's code, and their options come from the file
        raise DataError(f"{folder / RECORD}: its network cannot be built ({first_line(error)})") from error


@contextlib.contextmanager
def _no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop this thread from building a network that these weights cannot be of."""
    thread, room = threading.get_ident(), 2 * sum(t.nbytes for t in tensors.values()) + _SPARE
    modules = 8 * len(tensors) + _SPARE_MODULES

    def count(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal room
        if threading.get_ident() == thread and parameter is not None:
            room -= parameter.nbytes
            if room < 0:
                raise _TooLarge

    def count_module(module: nn.Module, name: str, part: Any) -> None:
        nonlocal modules
        if threading.get_ident() == thread:
            modules -= 1
            if modules < 0:
                raise _TooLarge

    with contextlib.ExitStack() as hooks:
        hooks.callback(on_parameter(count).remove)
        hooks.callback(on_module(count_module).remove)
        yield


def _compare(network: Classifier | None, tensors: Mapping[str, Tensor], folder: Path) -> None:
    for name, tensor in network.state_dict().items() if network is not None else ():
        found = tensors.get(name)
        if found is None or found.dtype != tensor.dtype or found.shape != tensor.shape:
            raise _of_another(folder, name)


def _of_another(folder: Path, why: str = "") -> DataError:
    about = f" ({why})" if why else ""
    return DataError(f"{folder / WEIGHTS}: weights of another network than {RECORD} names{about}")
