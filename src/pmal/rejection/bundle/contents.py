"""The tensors of a model as files hold them, and the model put together from them, each one checked.

K classes (the network's and those added since), T prototypes of the class that has most, D channels,
N training images.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pmal.ensemble.classifier import FEATURES, Classifier
from pmal.errors import DataError, UsageError
from pmal.methods import SCORES
from pmal.rejection.bundle.layout import CALIBRATION, LAYERS, RECORD, REFERENCE, WEIGHTS
from pmal.rejection.bundle.record import Record, thresholds_in_effect
from pmal.rejection.bundle.stored_network import build_network
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel
from pmal.rejection.scores import LOGIT_SCORES, Reference
from pmal.rejection.typicality.of_classes import ClassTypicality
from pmal.rejection.typicality.of_layers import TYPICALITY, AnyTypicality, Typicality

_FLOATS = (torch.float32, torch.float64)
_SCORE = "scores."
AGAIN = "save the model again; `pmal fit --out RUN --from calibration` does so for a run, without training"


def tensor_files(record: Record) -> tuple[str, ...]:
    """Return the tensor files that belong to a model.json."""
    reference = () if record.distance is None else (REFERENCE,)
    calibration = () if record.held_out is None else (CALIBRATION,)
    return (WEIGHTS, *reference, *calibration, *(() if record.layers is None else (LAYERS,)))


def collect(model: OpenSetModel) -> dict[str, dict[str, Tensor]]:
    """Return all tensors of a model by file and name."""
    if model.classifier.encoder_dtype == torch.float16:
        raise UsageError("this model was rounded to half precision: load it without to save it")
    files: dict[str, dict[str, Tensor]] = {WEIGHTS: dict(model.classifier.state_dict())}
    if model.reference is not None:
        reference, pictures = model.reference, model.pictures
        files[REFERENCE] = {
            "prototypes": reference.prototypes_KTD,
            "mask": reference.mask_KT,
            "training": reference.training_ND,
            **({} if pictures is None else {"pictures": pictures}),
        }
    elif model.gallery or model.pictures is not None:
        raise UsageError("a gallery or pictures without a reference: pass the prototypes' embeddings, too")
    if model.calibration is not None:
        held = model.calibration
        # Without those of plugins that it does not reject by: it should not need these plugins.
        own = {name: t for name, t in held.scores.items() if name == model.rule.score or name not in SCORES}
        scores = {f"{_SCORE}{name}": values for name, values in own.items()}
        kept = {name: t for name, t in (("z", held.z), ("labels", held.labels)) if t is not None}
        files[CALIBRATION] = {"predictions": held.predictions, **scores, **kept}
    if model.typicality is not None:
        files[LAYERS] = dict(model.typicality.state_dict())
    return {file: {name: _plain(t) for name, t in named.items()} for file, named in files.items()}


def assemble(record: Record, tensors: Mapping[str, Mapping[str, Tensor]], folder: Path) -> OpenSetModel:
    """Return the model on the CPU.

    What does not fit together is rejected by the name of its file in `folder`.
    """
    network = build_network(record, tensors[WEIGHTS], folder)
    reference, pictures, calibration = None, None, None
    if record.distance is not None:
        path, named = folder / REFERENCE, tensors[REFERENCE]
        reference = _reference(record, record.distance, named, network.num_features, path)
        pictures = _pictures(record, named, reference.mask_KT, path)
    if record.held_out is not None:
        path, named = folder / CALIBRATION, tensors[CALIBRATION]
        calibration = _calibration(record, record.held_out, named, network.head.own_scores, path)
        calibration = _embeddings(record, calibration, named, network.num_features, path)
    typicality = None
    if record.layers is not None:
        typicality = _typicality(record.layers, network, tensors[LAYERS], folder)
    model = OpenSetModel(
        network, record.class_names, record.rule, reference, record.gallery, pictures, calibration, typicality
    )
    if thresholds_in_effect(model) != record.thresholds:
        raise DataError(f"{folder / RECORD}: its thresholds are not those that its rule gives: {AGAIN}")
    return model


def _plain(tensor: Tensor) -> Tensor:
    # A copy, because safetensors refuses tensors that share memory.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _reference(
    record: Record, distance: str, tensors: Mapping[str, Tensor], channels: int, path: Path
) -> Reference:
    _check_names(tensors, {"prototypes", "mask", "training"}, {"pictures"}, path)
    prototypes_KTD, mask_KT, training_ND = (tensors[name] for name in ("prototypes", "mask", "training"))
    classes, most, images = len(record.class_names), _length(mask_KT, 1), _length(training_ND, 0)
    _check(path, "mask", mask_KT, (torch.bool,), (classes, most))
    _check(path, "prototypes", prototypes_KTD, _FLOATS, (classes, most, channels))
    _check(path, "training", training_ND, _FLOATS, (images, channels))
    if not prototypes_KTD[mask_KT].isfinite().all() or not training_ND.isfinite().all():
        raise DataError(f"{path}: NaN or infinite values among the embeddings")
    if record.gallery and [len(members) for members in record.gallery] != mask_KT.sum(dim=1).tolist():
        raise DataError(f"{path}: other numbers of prototypes than {RECORD} lists")
    return Reference(prototypes_KTD, mask_KT, distance, training_ND)


def _pictures(record: Record, tensors: Mapping[str, Tensor], mask_KT: Tensor, path: Path) -> Tensor | None:
    pictures = tensors.get("pictures")
    if pictures is not None:
        size = pictures.shape[2:] if pictures.ndim == 4 else (0, 0)
        _check(
            path,
            "pictures",
            pictures,
            (record.spec.dtype,),
            (int(mask_KT.sum()), record.spec.channels, *size),
        )
    return pictures


def _calibration(
    record: Record, held_out: int, tensors: Mapping[str, Tensor], own: tuple[str, ...], path: Path
) -> Calibration:
    valid = [*LOGIT_SCORES, *SCORES, *own, *(("distance", "neighbors") if record.distance else ())]
    valid += ["combined"] if record.scale else []
    valid += [] if record.layers is None else [TYPICALITY]
    needed = {
        "predictions",
        *(f"{_SCORE}{name}" for name in (record.scale.quantiles if record.scale else ())),
    }
    _check_names(tensors, needed, {"z", "labels", *(f"{_SCORE}{name}" for name in valid)}, path)
    predictions = tensors["predictions"]
    _check(path, "predictions", predictions, (torch.int64,), (held_out,))
    if ((predictions < 0) | (predictions >= len(record.class_names))).any():
        raise DataError(f"{path}: predictions of a class that {RECORD} does not list")
    scores = {name.removeprefix(_SCORE): t for name, t in tensors.items() if name.startswith(_SCORE)}
    for name, values in scores.items():
        # In version 0.1 the combined score was of those images alone that its scale was not made of.
        half = name == "combined" and values.numel() != held_out
        _check(path, f"{_SCORE}{name}", values, (torch.float64,), (held_out // 2 if half else held_out,))
    return Calibration(scores, predictions, record.scale, folds=record.folds)


def _typicality(
    names: tuple[str, ...], network: Classifier, tensors: Mapping[str, Tensor], folder: Path
) -> AnyTypicality:
    path = folder / LAYERS
    if names != network.observed:
        raise DataError(f"{folder / RECORD}: its layers are not those of its network: save it again")
    # Rows of a single class are compared with all of them, as the layers of a network are.
    made = _of_classes if network.on_features and "mean_0" not in tensors else _of_layers
    typicality = made(names, tensors, path)
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise DataError(f"{path}: NaN or infinite values among the statistics")
    return typicality


def _of_classes(names: tuple[str, ...], tensors: Mapping[str, Tensor], path: Path) -> ClassTypicality:
    kinds = ("center", "whitening", "means", "lengths")
    _check_names(tensors, set(kinds), set(), path)
    center_F, whitening_FF, means_KF, lengths = (tensors[name] for name in kinds)
    width = center_F.numel()
    _check(path, "center", center_F, (torch.float32,), (width,))
    _check(path, "whitening", whitening_FF, (torch.float32,), (width, width))
    _check(path, "means", means_KF, (torch.float32,), (_length(means_KF, 0), width))
    _check(path, "lengths", lengths, (torch.float32,), (2,))
    return ClassTypicality(center_F, whitening_FF, means_KF, lengths)


def _of_layers(names: tuple[str, ...], tensors: Mapping[str, Tensor], path: Path) -> Typicality:
    kinds = {f"{kind}_{i}" for kind in ("usual", "mean", "directions") for i in range(len(names))}
    _check_names(tensors, kinds | {"whitening"}, set(), path)
    layers, total = {}, 0
    for i, name in enumerate(names):
        usual_C, mean_F, directions_FR = (tensors[f"{kind}_{i}"] for kind in ("usual", "mean", "directions"))
        width, count = mean_F.numel(), _length(directions_FR, 1)
        _check(path, f"usual_{i}", usual_C, (torch.float32,), (0 if name == FEATURES else width // 2,))
        _check(path, f"mean_{i}", mean_F, (torch.float32,), (width,))
        _check(path, f"directions_{i}", directions_FR, (torch.float32,), (width, count))
        layers[name], total = (usual_C, mean_F, directions_FR), total + count
    _check(path, "whitening", tensors["whitening"], (torch.float32,), (total, total))
    return Typicality(layers, tensors["whitening"])


def _embeddings(
    record: Record, calibration: Calibration, tensors: Mapping[str, Tensor], channels: int, path: Path
) -> Calibration:
    """Add the embeddings and labels of some of its images, if they were kept."""
    z_ND, labels_N = tensors.get("z"), tensors.get("labels")
    if z_ND is not None:
        _check(path, "z", z_ND, _FLOATS, (_length(z_ND, 0), channels))
    if labels_N is not None:
        _check(path, "labels", labels_N, (torch.int64,), (0 if z_ND is None else len(z_ND),))
        if ((labels_N < 0) | (labels_N >= len(record.class_names))).any():
            raise DataError(f"{path}: labels of a class that {RECORD} does not list")
    return replace(calibration, z=z_ND, labels=labels_N)


def _length(tensor: Tensor, dim: int) -> int:
    """Return the length, at least 1, which is what the message then says that an empty tensor should have."""
    return max(1, tensor.shape[dim]) if tensor.ndim == 2 else 1


def _check_names(tensors: Mapping[str, Tensor], needed: set[str], allowed: set[str], path: Path) -> None:
    missing, foreign = sorted(needed - set(tensors)), sorted(set(tensors) - needed - allowed)
    if missing or foreign:
        found = f"has no {missing[0]}" if missing else f"has a foreign tensor {foreign[0]!r}"
        raise DataError(f"{path}: {found}: {AGAIN}")


def _check(
    path: Path, name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> None:
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        found, expected = f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtypes[0]} {shape}"
        raise DataError(f"{path}: {name} is {found}, not {expected}: save the model again")
