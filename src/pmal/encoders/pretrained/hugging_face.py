"""Vision models of transformers: with weights from the hub or a folder, or from a description without.

transformers gets only tensors and checked numbers. It opens no file and downloads nothing itself.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pmal._runtime.files import read_json
from pmal.encoders.pretrained.backbone import Backbone, Cropped
from pmal.encoders.pretrained.families import Family, check_fields, find_family, own_fields
from pmal.encoders.pretrained.hub import find_folder
from pmal.encoders.pretrained.names import CONFIG, package_missing
from pmal.encoders.pretrained.preprocessing import Preprocessing, read_preprocessing
from pmal.encoders.pretrained.weights import load_weights, read_backbone, read_folder, without_prefix
from pmal.errors import DataError, UsageError, first_line

KIND = "transformers"
LARGEST = 3_000_000_000
"""Largest number of weights of a network; the largest of these families has two billion."""
PREFIX = "network."
"""Prefix of the tensors of a saved `Backbone`."""


def hugging_face_backbone(name: str, weights: str | None) -> Backbone:
    """Return the model that `hf/...` names with its weights, or with those of a .safetensors file.

    Raises:
        UsageError: transformers is not installed, or the model cannot be downloaded.
        DataError: the configuration or the weights cannot be used.
    """
    if missing := package_missing(name):
        raise UsageError(missing)
    given = None if weights is None else read_backbone(Path(weights))
    folder = find_folder(name.removeprefix("hf/"), with_weights=given is None)
    where = str(folder / CONFIG)
    model_type, found = own_fields(read_json(folder / CONFIG), where)
    family = find_family(model_type, where)
    config = _config(family, found, where)
    fields = {field: _plain(getattr(config, field)) for field in family.fields}
    architecture = {"kind": KIND, "model_type": model_type, "config": fields}
    backbone = rebuild_hugging_face(name, architecture, read_preprocessing(folder), where)
    tensors = read_folder(folder) if given is None else given
    assert isinstance(backbone.body, Cropped)
    backbone.body.network = _with_weights(
        backbone.body.network, tensors, family, config, weights or str(folder)
    )
    backbone.requires_grad_(False)
    return backbone.train(False)


def rebuild_hugging_face(
    name: str, architecture: Mapping[str, Any], images: Preprocessing, where: str
) -> Backbone:
    """Return a network without its weights. Nothing is looked up on the hub or in a folder.

    The architecture may come from anyone; `where` begins the message of an error.

    Raises:
        UsageError: transformers is not installed.
        DataError: the architecture is not one that can be built here.
    """
    if missing := package_missing(name):
        raise UsageError(missing)
    family = find_family(architecture.get("model_type"), where)
    fields = architecture.get("config")
    if not isinstance(fields, Mapping) or set(fields) != set(family.fields):
        raise DataError(f"{where}: its config does not have the fields of a {architecture['model_type']}")
    config = _config(family, fields, where)
    own = {"kind": KIND, "model_type": architecture["model_type"]}
    num_features = _measure(family, config, images.crop, where)
    return Backbone(
        name,
        Cropped(_network(family, config), images.crop, partial(_features, family.first_token)),
        images,
        num_features=num_features,
        architecture={**own, "config": dict(fields), "crop": images.crop},
    )


def _config(family: Family, fields: Mapping[str, Any], where: str) -> Any:
    """Return transformers' configuration with these fields, after checking them, and no others."""
    check_fields(family, fields, where)
    import transformers

    try:
        return getattr(transformers, family.config)(**fields, **family.fixed)
    except Exception as error:  # transformers checks how fields fit together, by errors of many kinds
        raise DataError(f"{where}: makes no model ({first_line(error)})") from None


def _network(family: Family, config: Any) -> nn.Module:
    import transformers

    network: nn.Module = getattr(transformers, family.model)(config, **family.options)
    return network.eval()


def _measure(family: Family, config: Any, crop: int, where: str) -> int:
    """Return the number of features, measured without allocating memory: huge sizes are rejected in time."""
    try:
        with torch.device("meta"), torch.no_grad():
            network = _network(family, config)
            if sum(weight.numel() for weight in network.parameters()) > LARGEST:
                raise DataError(f"more than {LARGEST:,} weights")
            features_BD = _features(family.first_token, network(torch.zeros(1, 3, crop, crop)))
    except Exception as error:
        raise DataError(f"{where}: makes no model of images of {crop} px ({first_line(error)})") from None
    return int(features_BD.shape[1])


def _with_weights(
    network: nn.Module, tensors: dict[str, Tensor], family: Family, config: Any, source: str
) -> nn.Module:
    """Return the network with these tensors, whose names may be those of an older or a larger model."""
    own = without_prefix(tensors, PREFIX)
    if own is not tensors:
        load_weights(network, own, source)
        return network
    try:
        with _quiet():
            loaded, about = type(network).from_pretrained(  # type: ignore[attr-defined]
                None,
                config=config,
                state_dict=tensors,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=False,
                local_files_only=True,
                **family.options,
            )
    except Exception as error:
        raise DataError(f"{source}: its weights cannot be used ({first_line(error)})") from None
    for tensor in sorted(about["missing_keys"]):
        raise DataError(f"{source}: lacks the tensor {tensor}: pass weights of the same network")
    for tensor, got, wanted in sorted(about["mismatched_keys"]):
        shapes = f"shape {tuple(got)} instead of {tuple(wanted)}"
        raise DataError(f"{source}: tensor {tensor} has {shapes}: pass weights of the same network")
    found: nn.Module = loaded.eval()
    return found


def _features(first_token: bool, output: Any) -> Tensor:
    z_BD: Tensor = output.last_hidden_state[:, 0] if first_token else output.pooler_output.flatten(1)
    return z_BD


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars, and reports about parts of a model that are not needed here."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
