"""Encoders by name: create, register, list."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import nn

from pmal.config import check_option
from pmal.encoders.adapters import LIBRARIES, Encoder, Projected, library_encoder
from pmal.encoders.pretrained.names import is_pretrained, list_pretrained
from pmal.errors import UsageError, unknown_name
from pmal.plugins import Registry

SMALLEST_IMAGE = 8
PROJECTIONS = ("none", "linear")

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])

ENCODERS: Registry[Callable[..., nn.Module]] = Registry("encoder")
_ANY_INPUT: set[str] = set()


def register_encoder(name: str, *, any_input: bool = False) -> Callable[[Factory], Factory]:
    """Return a decorator that makes a factory the encoder `name`: `create_encoder(name, ...)` calls it.

    The factory is called with `in_channels`, `image_size` (None: not known) and the caller's options. Its
    other parameters are the options that the encoder has. It returns a module with `num_features`.

    Args:
        name: What `--encoder` and saved models call it.
        any_input: It takes other inputs than gray and color images, and checks them itself.

    Returns:
        A decorator, which returns what it decorates.

    Raises:
        UsageError: The name is taken, or is one of a pretrained network.
    """

    def register(factory: Factory) -> Factory:
        if is_pretrained(name):
            raise UsageError(f"encoder '{name}' is a pretrained network: choose another name")
        ENCODERS.register(name, factory, getattr(factory, "__module__", None))
        if any_input:
            _ANY_INPUT.add(name)
        return factory

    return register


def list_encoders() -> list[str]:
    """Return the names of the encoders, those of installed plugins in them, sorted.

    `timm/<model>` and `torchvision/<model>` work as well.

    >>> {"oscri", "resnet50", "small"} <= set(list_encoders())
    True
    """
    return sorted(ENCODERS)


def create_encoder(
    name: str,
    in_channels: int = 3,
    image_size: int | None = None,
    *,
    projection: str = "none",
    **options: Any,
) -> Encoder:
    """Return a new, untrained encoder; its weights come from torch's global random generator.

    Args:
        name: one of `list_encoders()`, or `timm/<model>` or `torchvision/<model>`.
        in_channels: 1 for gray images, 3 for color.
        image_size: side in pixels, a hint to encoders whose structure depends on it. The encoders of this
            package accept every size from 8 px.
        projection: `linear` puts a linear layer on the pooled features. Rectified features are never
            negative, which leaves a cosine half of its range. `none` leaves them as they are.
        options: those of the encoder.

    Returns:
        A module from images (B, C, H, W) to embeddings (B, D), with `num_features` = D.

    >>> create_encoder("oscri", in_channels=1).num_features
    128
    >>> create_encoder("wide_resnet", depth=16, width=2).num_features
    128
    """
    factory = _find_factory(name)
    if name not in _ANY_INPUT:
        _check_input(in_channels, image_size)
    _check_options(name, factory, options)
    encoder = factory(in_channels=in_channels, image_size=image_size, **options)
    if not isinstance(getattr(encoder, "num_features", None), int):
        raise UsageError(f"encoder '{name}' has no integer num_features: wrap it in a FeatureAdapter")
    if projection not in PROJECTIONS:
        raise unknown_name("projection", projection, PROJECTIONS)
    found = cast("Encoder", encoder)  # The contract is num_features and forward, not the base class.
    return Projected(found) if projection == "linear" else found


def default_options(name: str) -> dict[str, Any]:
    """Return the options of an encoder with the values that they have when nobody sets them.

    >>> default_options("oscri")
    {'dropout': 0.0}
    """
    parameters = inspect.signature(_find_factory(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _find_factory(name: str) -> Callable[..., nn.Module]:
    if name in ENCODERS:
        return ENCODERS[name]
    library, _, model = name.partition("/")
    if model and library in LIBRARIES:
        return functools.partial(library_encoder, library, model)
    others = [f"{library}/<model>" for library in ("hf", *LIBRARIES)]
    raise unknown_name("encoder", name, [*list_encoders(), *list_pretrained(), *others])


def _check_input(in_channels: int, image_size: int | None) -> None:
    if in_channels not in (1, 3):
        raise UsageError(f"in_channels is {in_channels}: set it to 1 (gray) or 3 (color)")
    if image_size is not None and image_size < SMALLEST_IMAGE:
        raise UsageError(f"image_size is {image_size}: images must have at least {SMALLEST_IMAGE} px")


def _check_options(name: str, factory: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    valid = [parameter for parameter in parameters if parameter not in ("in_channels", "image_size")]
    for option, value in options.items():
        if not valid:
            raise UsageError(f"encoder '{name}' has no option '{option}': it takes no options")
        if option not in valid:
            raise unknown_name(f"option of encoder {name}", option, valid)
        if hasattr(parameters[option].annotation, "__metadata__"):
            check_option(parameters[option], value, "encoder.options")
