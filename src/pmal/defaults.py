"""Defaults for what the user has not set: the encoder by the images, and the recipe by the encoder."""

from collections.abc import Callable, Mapping
from typing import Any

from pmal.config import OWN, EncoderConfig, build, merge, own_recipe, read_recipe
from pmal.data.samples import Samples
from pmal.data.sources.readers import SAMPLE
from pmal.encoders.choice import AUTO, choose_encoder
from pmal.encoders.precomputed import OF_ROWS, PRECOMPUTED
from pmal.encoders.pretrained.names import is_frozen
from pmal.errors import unknown_name
from pmal.methods import METHODS


def complete_settings(
    given: Mapping[str, Any], recipe: str | None, own: Callable[[], Samples] | None, device: str
) -> tuple[dict[str, Any], str]:
    """Return the settings of the recipe with those given over them, and a line about the encoder.

    Without an encoder and a recipe, or with the encoder "auto", the user's samples decide the encoder. The
    line tells which it is and why. Else the line is empty.

    Args:
        given: what the user has set, by section.
        recipe: its name or file. None: the one that goes with the encoder. own: the method's.
        own: opens the user's own samples. None: the data set is a known one, which has its recipe.
        device: cpu or cuda.
    """
    note, name = "", given.get("encoder", {}).get("name")
    if own is not None and (name == AUTO or (name is None and recipe is None)):
        choice = choose_encoder(own(), device)
        given = merge(given, {"encoder": {"name": choice.name}})
        note = f"encoder {choice.name}: {choice.why}"
    elif name == AUTO:
        rest = {key: value for key, value in given["encoder"].items() if key != "name"}
        given = {**given, "encoder": rest}
    if recipe == OWN:
        method = given.get("method", "pmal")
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
        recipe = own_recipe(method, given.get("data", {}).get("source", SAMPLE))
    return with_given(read_recipe(recipe or usual_recipe(given)), given), note


def with_given(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those given over them, and with what follows from these."""
    settings = merge(settings, given)
    # A user who sets a held-out share or a number of epochs wants exactly that: no folds, no least steps.
    for section, asked, instead in (("data", "held_out", "folds"), ("training", "epochs", "min_steps")):
        chosen = given.get(section, {})
        if asked in chosen and instead not in chosen:
            settings = merge(settings, {section: {instead: 0}})
    if settings.get("encoder", {}).get("finetune", "none") != "none" and "folds" not in given.get("data", {}):
        # Fine-tuning in each fold takes ten times as long. One for all folds has seen the held-out images.
        settings = merge(settings, {"data": {"folds": 0}})
    return settings


def usual_recipe(given: Mapping[str, Any]) -> str:
    """Return the recipe that goes with an encoder and a data set.

    >>> usual_recipe({}), usual_recipe({"encoder": {"name": "efficientnet_lite0"}})
    ('sample', 'precomputed')
    """
    encoder = build(EncoderConfig, given.get("encoder", {}), "encoder.")
    if encoder.name in OF_ROWS or is_frozen(encoder):
        return PRECOMPUTED
    return SAMPLE if given.get("data", {}).get("source", SAMPLE) == SAMPLE else "standard"
