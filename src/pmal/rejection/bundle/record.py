"""model.json: all of a model that is not a tensor, readable, and read back without any trust.

JSON has no infinite numbers: they are text here ("inf", "-inf").
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from pmal._runtime.manifest import describe_environment
from pmal._runtime.text import printable
from pmal.config import build, to_settings
from pmal.encoders.registry import ENCODERS
from pmal.ensemble.classifier import ClassifierSpec
from pmal.errors import DataError, PmalError, UsageError
from pmal.methods import METHODS, SCORES
from pmal.optimization.distances import DISTANCES
from pmal.plugins import Registry, check_known
from pmal.rejection.bundle.layout import FORMAT
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import LOGIT_SCORES, ScoreScale

VERSION = 1

_KINDS = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_WRITER = ("pmal", "revision", "python", "libraries")
_HEAD = ("format", "version", "written_by", "fingerprint")
_REGISTRIES: tuple[Registry[Any], ...] = (ENCODERS, METHODS, SCORES)
_BODY = ("network", "channels_last", "normalization", "rule", "distance", "classes", "calibration", "layers")

Kind = TypeVar("Kind")
Gallery = tuple[tuple[Prototype, ...], ...]


@dataclass(frozen=True)
class Record:
    """What model.json says."""

    spec: ClassifierSpec
    channels_last: bool
    """How the convolutions' weights lie in memory: it decides the last bit of an answer."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rule: Rule
    distance: str | None
    """None: the model has no prototypes."""
    class_names: tuple[str, ...]
    thresholds: tuple[float | None, ...]
    gallery: Gallery
    held_out: int | None
    """Images of the calibration. None: the model has none."""
    scale: ScoreScale | None
    folds: int
    """Parts in which these images were held out in turn; 0: all at once."""
    layers: tuple[str, ...] | None
    """Whose statistics say whether an image is typical. None: the model does not look at layers."""


def describe(model: OpenSetModel, fingerprint: str) -> dict[str, Any]:
    """Return the content of model.json."""
    environment = describe_environment(torch.device("cpu"))
    network = model.classifier
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": {name: environment[name] for name in _WRITER},
        "fingerprint": fingerprint,
        "network": _network_settings(network.spec),
        "channels_last": network.is_channels_last,
        "normalization": {"mean": network.mean.tolist(), "std": network.std.tolist()},
        "rule": asdict(model.rule) | {"threshold": _to_json(model.rule.threshold)},
        "distance": model.reference.distance if model.reference else None,
        "classes": _describe_classes(model),
        "calibration": _describe_calibration(model.calibration) if model.calibration else None,
        "layers": list(model.typicality.names) if model.typicality else None,
        **_describe_plugins(model),
    }


def _describe_plugins(model: OpenSetModel) -> dict[str, Any]:
    """Return which names of this model are those of plugins, and the modules that registered them."""
    spec = model.classifier.spec
    used = zip(_REGISTRIES, (spec.encoder.name, spec.head.name, model.rule.score), strict=True)
    plugins = [
        {"kind": registry.kind, "name": name, "module": module}
        for registry, name in used
        if (module := registry.origin(name))
    ]
    # Without a field for what is not there, as version 0.1 wrote it.
    return {"plugins": plugins} if plugins else {}


def thresholds_in_effect(model: OpenSetModel) -> tuple[float | None, ...]:
    """Return the threshold of each class.

    None if the model cannot decide by its rule; asked for an answer, it says why.
    """
    try:
        return tuple(model.limits().tolist())
    except PmalError:
        return (None,) * len(model.class_names)


def check_format(content: dict[str, Any]) -> None:
    """Reject another format before anything else is looked at: it may have anything else."""
    if content.get("format") != FORMAT:
        raise DataError(f"not a model of pmal: its format is not {FORMAT}")
    version = _typed(content.get("version"), int, "version")
    if version > VERSION:
        raise DataError(f"format version {version} was written by a newer pmal: upgrade pmal")
    if version < VERSION:
        raise DataError(f"format version {version} does not exist: save the model again")


def read_record(content: dict[str, Any]) -> Record:
    """Return what `describe` gave; a field that is missing, foreign or of another type is named."""
    check_format(content)
    optional = ("plugins",) if "plugins" in content else ()
    section = _section(content, "model", (*_HEAD, *_BODY, *optional))
    _read_head(section)
    _check_plugins(section)
    normalization = _section(section["normalization"], "normalization", ("mean", "std"))
    classes = [_read_class(entry, f"classes[{k}]") for k, entry in enumerate(_list(section, "classes"))]
    held_out, scale = _read_calibration(section["calibration"])
    spec = _read_network(section["network"])
    record = Record(
        spec=spec,
        channels_last=_typed(section["channels_last"], bool, "channels_last"),
        mean=_numbers(normalization, "mean"),
        std=_numbers(normalization, "std"),
        rule=_read_rule(section["rule"], spec),
        distance=_read_distance(section["distance"]),
        class_names=tuple(name for name, _, _ in classes),
        thresholds=tuple(threshold for _, threshold, _ in classes),
        gallery=_read_gallery([prototypes for _, _, prototypes in classes]),
        held_out=held_out,
        scale=scale,
        folds=_read_folds(section["calibration"]),
        layers=_read_layers(section["layers"]),
    )
    _check_classes(record)
    return record


def _network_settings(spec: ClassifierSpec) -> dict[str, Any]:
    try:
        settings = to_settings(spec)
        # Where the first weights came from is nobody else's business, and version 0.1 had no such field.
        settings["encoder"].pop("weights", None)
        # Without a field for what is not there, as version 0.1 wrote it.
        return settings if spec.backbone else {n: v for n, v in settings.items() if n != "backbone"}
    except (TypeError, ValueError) as error:
        raise UsageError(f"options of encoder {spec.encoder.name} cannot be saved ({error})") from None


def _describe_calibration(calibration: Calibration) -> dict[str, Any]:
    scale = calibration.scale
    folds = {"folds": calibration.folds} if calibration.folds else {}
    return {"images": len(calibration.predictions), "scale": scale.to_lists() if scale else None, **folds}


def _describe_classes(model: OpenSetModel) -> list[dict[str, Any]]:
    if model.gallery and len(model.gallery) != len(model.class_names):
        found = f"{len(model.gallery)} classes in the gallery"
        raise UsageError(f"{found}, {len(model.class_names)} class names: pass one list for each class")
    gallery: list[list[dict[str, Any]] | None] = [
        [_describe_prototype(p) for p in members] for members in model.gallery
    ]
    rows = zip(
        model.class_names,
        thresholds_in_effect(model),
        gallery or [None] * len(model.class_names),
        strict=True,
    )
    return [
        {"name": name, "threshold": _to_json(threshold), "prototypes": prototypes}
        for name, threshold, prototypes in rows
    ]


def _describe_prototype(prototype: Prototype) -> dict[str, Any]:
    # r is there to be read: exp rounds differently from machine to machine, log r is the number that counts.
    r = math.exp(prototype.log_r) if prototype.log_r < 700 else math.inf
    about = {"id": prototype.id, "file": prototype.file, "r": _to_json(r)}
    return about | {"log_r": _to_json(prototype.log_r), "gap": _to_json(prototype.gap)}


def _to_json(value: float | None) -> float | str | None:
    return str(value) if value in _INFINITE.values() else value


def _read_head(content: dict[str, Any]) -> None:
    writer = _section(content["written_by"], "written_by", _WRITER)
    libraries = _typed(writer["libraries"], dict, "written_by.libraries")
    for name in ("pmal", "python"):
        _typed(writer[name], str, f"written_by.{name}")
    for name, version in {"revision": writer["revision"], **libraries}.items():
        if version is not None:  # no git, not installed
            _typed(version, str, f"written_by: {name}")
    _typed(content["fingerprint"], str, "fingerprint")


def _check_plugins(content: dict[str, Any]) -> None:
    """Name the plugins that are missing. None is imported for being named here."""
    kinds, used = {registry.kind: registry for registry in _REGISTRIES}, []
    for i, entry in enumerate(_list(content, "plugins") if "plugins" in content else ()):
        found = _section(entry, f"plugins[{i}]", ("kind", "name", "module"))
        kind, name, module = (_typed(found[key], str, f"plugins[{i}].{key}") for key in found)
        if kind not in kinds:
            raise DataError(f"plugins[{i}].kind is {_short(kind)}: valid are {', '.join(kinds)}")
        used.append((kinds[kind], printable(name[:80]), printable(module[:80])))
    check_known(used)


def _read_network(settings: Any) -> ClassifierSpec:
    try:
        spec = build(ClassifierSpec, _typed(settings, dict, "network"), "network.")
    except (UsageError, TypeError, OverflowError) as error:
        raise DataError(f"network cannot be read ({error})") from None
    if _network_settings(spec) != settings:
        raise DataError("network: fields are missing or of another type")
    return spec


def _read_rule(value: Any, spec: ClassifierSpec) -> Rule:
    found = _section(value, "rule", ("score", "accept", "per_class", "threshold"))
    score, accept = _typed(found["score"], str, "rule.score"), _number(found["accept"], "rule.accept")
    methods = [METHODS[name] for name in ("pmal", spec.head.name) if name in METHODS]
    valid = [*LOGIT_SCORES, *(name for method in methods for name in method.scores)]
    if score not in valid and score not in SCORES:
        raise DataError(f"rule.score is {_short(score)}: valid are {', '.join([*valid, *SCORES])}")
    if not 0 < accept < 1:
        raise DataError(f"rule.accept is {accept}: valid are shares above 0 and below 1")
    per_class = _typed(found["per_class"], bool, "rule.per_class")
    return Rule(score, accept, per_class, _number_or_none(found["threshold"], "rule.threshold"))


def _read_distance(value: Any) -> str | None:
    if value is None:
        return None
    if _typed(value, str, "distance") not in DISTANCES:
        raise DataError(f"distance is {_short(value)}: valid are {', '.join(DISTANCES)}")
    return str(value)


def _read_class(value: Any, where: str) -> tuple[str, float | None, tuple[Prototype, ...] | None]:
    found = _section(value, where, ("name", "threshold", "prototypes"))
    name = _typed(found["name"], str, f"{where}.name")
    threshold = _number_or_none(found["threshold"], f"{where}.threshold")
    if found["prototypes"] is None:
        return name, threshold, None
    entries = enumerate(_list(found, "prototypes"))
    return name, threshold, tuple(_read_prototype(e, f"{where}.prototypes[{t}]") for t, e in entries)


def _read_prototype(value: Any, where: str) -> Prototype:
    found = _section(value, where, ("id", "file", "r", "log_r", "gap"))
    _number(found["r"], f"{where}.r")
    return Prototype(
        _typed(found["id"], int, f"{where}.id"),
        _typed(found["file"], str, f"{where}.file"),
        _number(found["log_r"], f"{where}.log_r"),
        _number(found["gap"], f"{where}.gap"),
    )


def _read_gallery(prototypes: Sequence[tuple[Prototype, ...] | None]) -> Gallery:
    known = tuple(members for members in prototypes if members is not None)
    if known and len(known) < len(prototypes):
        raise DataError("classes: some have a list of prototypes and some have none")
    return known


def _read_calibration(value: Any) -> tuple[int | None, ScoreScale | None]:
    if value is None:
        return None, None
    optional = ("folds",) if isinstance(value, dict) and "folds" in value else ()
    found = _section(value, "calibration", ("images", "scale", *optional))
    images = _typed(found["images"], int, "calibration.images")
    if found["scale"] is None:
        return images, None
    scale = _typed(found["scale"], dict, "calibration.scale")
    parts = {name: _read_scale_part(part, f"calibration.scale.{name}") for name, part in scale.items()}
    try:
        return images, ScoreScale.from_lists(parts)
    except PmalError as error:
        raise DataError(f"calibration.scale: {error}") from None


def _read_folds(value: Any) -> int:
    folds = 0 if value is None else _typed(value.get("folds", 0), int, "calibration.folds")
    if folds < 0:
        raise DataError(f"calibration.folds is {folds}: 0 or more parts were held out in turn")
    return folds


def _read_layers(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(_typed(name, str, f"layers[{i}]") for i, name in enumerate(_typed(value, list, "layers")))


def _read_scale_part(value: Any, where: str) -> dict[str, Any]:
    found = _section(value, where, ("weight", "quantiles"))
    return {"weight": _number(found["weight"], f"{where}.weight"), "quantiles": _numbers(found, "quantiles")}


def _check_classes(record: Record) -> None:
    own, names = record.spec.class_names, record.class_names
    if not own or names[: len(own)] != own:
        raise DataError("classes do not begin with those of the network")
    if record.distance is None and (len(names) > len(own) or record.gallery):
        raise DataError("classes have prototypes, or were added, but there is no distance to compare by")


def _section(value: Any, where: str, names: Sequence[str]) -> dict[str, Any]:
    """Return an object that has exactly these fields."""
    found = _typed(value, dict, where)
    for name in names:
        if name not in found:
            raise DataError(f"{where} has no field {name}")
    for name in found:
        if name not in names:
            raise DataError(f"{where} has a foreign field {_short(name)}: valid are {', '.join(names)}")
    return found


def _typed(value: Any, kind: type[Kind], where: str) -> Kind:
    # Not isinstance: True is an int, but no number that we wrote.
    if type(value) is not kind:
        raise DataError(f"{where} is {_short(value)}: expected {_KINDS[kind]}")
    return value


def _list(section: dict[str, Any], name: str) -> list[Any]:
    return _typed(section[name], list, name)


def _numbers(section: dict[str, Any], name: str) -> tuple[float, ...]:
    return tuple(_number(value, name) for value in _list(section, name))


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    exact = type(value) is int and abs(value) <= 2**53
    if not exact and not (type(value) is float and math.isfinite(value)):  # 1e999 is read as infinite
        raise DataError(f"{where} is {_short(value)}: expected a number")
    return float(value)


def _number_or_none(value: Any, where: str) -> float | None:
    return None if value is None else _number(value, where)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
