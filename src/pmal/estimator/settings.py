"""The options of `OpenSetClassifier` as the settings of a run, and back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pmal._runtime.devices import choose_device
from pmal.config import RejectionConfig, RunConfig, build, merge
from pmal.data.samples import Samples
from pmal.data.sources.readers import absolute_source
from pmal.defaults import complete_settings
from pmal.errors import UsageError
from pmal.methods import METHODS
from pmal.rejection.building import ALONE
from pmal.rejection.model import OpenSetModel
from pmal.serving.answers.answering import change_rule

ARRAYS = "arrays"
"""What stands for a source if samples came as arrays."""

_OPTIONS = {
    "method": ("method",),
    "encoder": ("encoder", "name"),
    "finetune": ("encoder", "finetune"),
    "reject_by": ("rejection", "score"),
    "accept": ("rejection", "accept"),
    "per_class_threshold": ("rejection", "per_class"),
    "held_out": ("data", "held_out"),
    "epochs": ("training", "epochs"),
    "prototypes_per_class": ("mining", "per_class"),
}
_ELSEWHERE = {"random_state": ("seed",), "fit(source)": ("data", "source")}
OF_THIS_MACHINE = ("device", "data_root", "verbose")
RULE_OPTIONS = {"reject_by": "score", "accept": "accept", "per_class_threshold": "per_class"}
"""Options that a fitted model follows without training, and what a `RejectionConfig` calls them."""


def estimator_config(
    params: Mapping[str, Any],
    source: str,
    seed: int,
    own: Callable[[], Samples] | None,
    one_class: bool = False,
) -> tuple[RunConfig, str]:
    """Return the config: recipe, then `settings`, then options by name; and a line about a chosen encoder.

    What an option stands for has no second way.

    Args:
        params: options of the estimator.
        source: name of the source.
        seed: of the run.
        own: opens the samples, if the source is no known set.
        one_class: there is nothing to tell apart, so that the typicality of samples decides alone.
    """
    extra = params["settings"] or {}
    if not isinstance(extra, Mapping):
        raise UsageError(f"settings is {extra!r}: pass sections, such as {{'mining': {{'epsilon': 0.6}}}}")
    for option, place in (_OPTIONS | _ELSEWHERE).items():
        if _has(extra, place):
            raise UsageError(f"settings: {'.'.join(place)} has its own place: use {option}")
    named: dict[str, Any] = {
        "seed": seed,
        "data": {"source": source if source == ARRAYS else absolute_source(source)},
    }
    for option, place in _OPTIONS.items():
        if params[option] is not None:
            named = merge(named, _nested(place, _plain(params[option])))
    if one_class:
        named = merge(named, _of_one_class(params))
    device = choose_device(params["device"]).type
    settings, note = complete_settings(merge(extra, named), params["recipe"], own, device)
    return build(RunConfig, settings), note


def _of_one_class(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for one class.

    A classifier of one class is certain of it: by its probability every sample is as near as any other.
    """
    if params["method"] not in ("pmal", "softmax") or params["reject_by"] not in ("auto", "probability"):
        raise UsageError(
            "1 class: only the typicality of samples tells it from all else: leave method and reject_by "
            "out, or pass 2 classes or more"
        )
    return {"method": "softmax", "rejection": {"score": "probability"}}


def changed_rule(model: OpenSetModel, params: Mapping[str, Any]) -> OpenSetModel:
    """Return the model with what the options say of its rule; refused if it cannot decide by that.

    The model itself comes back if no option is one of the rule.
    """
    given = {RULE_OPTIONS[name]: _plain(value) for name, value in params.items() if name in RULE_OPTIONS}
    if not given:
        return model
    build(RejectionConfig, given)
    if given.get("score") == "auto":
        given["score"] = _default_score(model)
    rule = change_rule(model.rule, given.get("score"), given.get("accept"), given.get("per_class"), None)
    changed = replace(model, rule=rule)
    changed.deciding_score()
    return changed


def saved_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return as JSON the options that say what the classifier is; none of the machine it was fitted on."""
    kept = {name: _plain(value) for name, value in params.items() if name not in OF_THIS_MACHINE}
    return kept | {"random_state": kept["random_state"] if isinstance(kept["random_state"], int) else None}


def model_params(model: OpenSetModel) -> dict[str, Any]:
    """Return the options of a classifier that holds this model, if the model knows them."""
    rule = model.rule
    return {
        "method": _method(model),
        "encoder": model.classifier.spec.network_name,
        "reject_by": rule.score,
        "accept": rule.accept,
        "per_class_threshold": rule.per_class,
    }


def _default_score(model: OpenSetModel) -> str:
    """Return what `reject_by="auto"` stands for with a model that is there already."""
    if len(model.class_names) == 1:
        return "probability"
    score = METHODS[_method(model)].score
    return ALONE if score == "combined" and score not in model.score_names else score


def _method(model: OpenSetModel) -> str:
    head = model.classifier.spec.head.name  # that of a method is called as the method is
    if head == "linear":
        return "softmax" if model.reference is None else "pmal"
    return head


def _has(settings: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    head, *rest = place
    inner = settings.get(head)
    return head in settings and (not rest or (isinstance(inner, Mapping) and _has(inner, tuple(rest))))


def _nested(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(place):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def _plain(value: Any) -> Any:
    """Return a number of numpy, as a parameter search draws it, as one of Python."""
    return value.item() if hasattr(value, "item") and not isinstance(value, Mapping) else value
