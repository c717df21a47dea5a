"""What stands on top of an encoder: from embeddings to logits, and whatever else a method learns there.

A method other than pmal and softmax is a head under `@register_method("name")`: that of the methods that PMAL
is compared with, and that of a plugin. A model on disk names its head, which is its method's name.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pmal._runtime.seeds import seeded
from pmal.config import RunConfig, check_option, within
from pmal.errors import UsageError, unknown_name
from pmal.methods import METHODS, SCORE_NAMES, SCORES, Method

if TYPE_CHECKING:
    from pmal.ensemble.classifier import Classifier

LINEAR = "linear"


@dataclass(frozen=True)
class HeadConfig:
    """A head by name, and the options that it has."""

    name: str = LINEAR
    options: Mapping[str, Any] = field(default_factory=dict)


def first_head(config: RunConfig) -> HeadConfig:
    """Return the classifiers' head. Options given are its own unless the finished network has another."""
    method = METHODS[config.method]
    return _complete(method.head, {} if method.final else config.method_options)


def final_head(config: RunConfig) -> HeadConfig:
    """Return the head of the finished network."""
    method = METHODS[config.method]
    return _complete(method.final or method.head, config.method_options)


def _complete(name: str, options: Mapping[str, Any]) -> HeadConfig:
    """Name every option: a saved network must not change when a default does."""
    return HeadConfig(name, default_options(name) | dict(options))


@dataclass(frozen=True)
class HeadShape:
    """What a head is built for."""

    features: int
    classes: int
    channels: int
    image_size: int
    bias: bool = True


class Head(nn.Module):
    """The contract. Subclasses take (shape: HeadShape, **options), and define `forward`: z_BD -> logits_BK.

    A larger logit means a likelier class; the scores of the logits are taken from them like from any others.
    """

    own_scores: ClassVar[tuple[str, ...]] = ()
    """Names of the scores that `unknown_scores` gives."""
    extra_features: int = 0
    """How many columns `complete` adds to an embedding."""
    views: ClassVar[int] = 1
    """How many augmented views of every image `loss` gets: first one of each image, then the next of each."""
    is_fitted_after: ClassVar[bool] = False
    """Whether `fit_after` wants the embedded training set, once training is over."""

    def known_loss(self, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        """Return what training minimizes, of embeddings of augmented images."""
        return cross_entropy(self(z_BD), labels_B, label_smoothing=smoothing)

    def loss(
        self,
        model: "Classifier",
        views_BCHW: Tensor,
        labels_B: Tensor,
        smoothing: float,
        parts: nn.Module | None,
    ) -> Tensor:
        """Return what training minimizes, of augmented and normalized images.

        For heads that need more than the embedding.

        Args:
            model: that the head belongs to.
            views_BCHW: the images; with `views` above 1, as many batches one after the other.
            labels_B: their classes.
            smoothing: of the labels.
            parts: what `training_parts` gave.
        """
        return self.known_loss(model.encoder(views_BCHW), labels_B, smoothing)

    def unknown_scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        """Return this head's own scores (B,), called in float64 by `scores_of`; larger is more unknown."""
        return {}

    def complete(self, normalized_BCHW: Tensor, z_BD: Tensor) -> Tensor:
        """Return the embedding with what the scores need to know of the image besides."""
        return z_BD

    def start_from(self, head: "Head") -> None:
        """Take over what the head of the first training has learned."""

    def fit_after(self, z_ND: Tensor, logits_NK: Tensor, labels_N: Tensor) -> None:
        """Fit statistics of the training set, into buffers of the head."""

    def training_parts(self, model: "Classifier") -> nn.Module | None:
        """Return networks that training alone needs, such as a generator; the finished model has none."""
        return None


class LinearHead(nn.Linear, Head):
    """One linear layer under cross entropy: the plain classifier."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape.features, shape.classes, bias=shape.bias)

    def start_from(self, head: Head) -> None:
        """Take over the other's layer if it is a linear head, too; what a subclass has besides stays."""
        if isinstance(head, LinearHead):
            self.load_state_dict(head.state_dict(), strict=False)


HeadType = TypeVar("HeadType", bound=type[Head])
_HEADS: dict[str, Callable[..., Head]] = {LINEAR: LinearHead}


def register_method(
    name: str,
    *,
    score: str = "",
    after: bool = False,
    again: bool = False,
    paper: str = "",
    passes: float = 1.0,
) -> Callable[[HeadType], HeadType]:
    """Return a decorator that makes a head the method `name`: in training, tables, saved models and export.

    Args:
        name: What `--method` and saved models call it.
        score: What it rejects by. Default: the first of the head's `own_scores`, else `logit`.
        after: The head replaces the linear layer of a trained plain classifier; else it is trained from the
            beginning.
        again: With `after`: the network is trained a second time, under this head.
        paper: Who published it.
        passes: How many images go through the network for each image of a batch: 2 if a step shows it as many
            generated ones.

    Returns:
        A decorator, which returns what it decorates.

    Raises:
        UsageError: The name, or that of one of its scores, is taken.
    """

    def register(head: HeadType) -> HeadType:
        for own in head.own_scores:
            if own in SCORE_NAMES or own in SCORES.loaded():
                raise UsageError(f"method '{name}': score '{own}' exists already: choose another name for it")
        found = Method(
            score=score or next(iter(head.own_scores), "logit"),
            head=LINEAR if after else name,
            final=name if after else "",
            second=after and again,
            scores=tuple(head.own_scores),
            paper=paper,
            passes=passes,
        )
        METHODS.register(name, found, head.__module__)
        _HEADS[name] = head
        return head

    return register


def create_head(config: HeadConfig, shape: HeadShape) -> Head:
    """Return a new, untrained head; its weights come from torch's global random generator."""
    valid = _options(config.name)
    for option, value in config.options.items():
        if not valid:
            raise UsageError(f"method_options.{option}: the head {config.name} takes no options")
        if option not in valid:
            raise unknown_name(f"option of {config.name}", option, valid)
        # Weights, counts and sizes are never negative.
        always = [within(0)] if type(valid[option].default) in (int, float) else []
        check_option(valid[option], value, "method_options", *always)
    return _HEADS[config.name](shape, **config.options)


def default_options(name: str) -> dict[str, Any]:
    """Return every option of a head, and what it is if nobody says otherwise."""
    return {option: parameter.default for option, parameter in _options(name).items()}


def _options(name: str) -> dict[str, inspect.Parameter]:
    # To look a method up imports what registers its head.
    if name not in _HEADS and (name not in METHODS or name not in _HEADS):
        raise unknown_name("head", name, (LINEAR, *METHODS))
    parameters = inspect.signature(_HEADS[name]).parameters
    return {option: parameter for option, parameter in parameters.items() if option != "shape"}


def check_heads(config: RunConfig) -> None:
    """Fail before any work if a head of the method does not take its options, whatever the images are."""
    with seeded(0, torch.device("cpu")):
        for head in (first_head(config), final_head(config)):
            create_head(head, HeadShape(features=64, classes=2, channels=3, image_size=32))


def scores_of(head: Head, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
    """Return the head's own scores, by its weights in float64; what broke the network is unknown."""
    weights = {f"head.{name}": tensor for name, tensor in [*head.named_parameters(), *head.named_buffers()]}
    doubles = {name: t.double() if t.is_floating_point() else t for name, t in weights.items()}
    with torch.no_grad():
        found = functional_call(_OwnScores(head), doubles, (z_BD.double(), logits_BK.double()))
    # NaN, and a distance or density that overflowed to the known side.
    return {name: score_B.masked_fill(~(score_B > -math.inf), math.inf) for name, score_B in found.items()}


class _OwnScores(nn.Module):
    """The scores as a module, because only those can be called with other weights than their own."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        return self.head.unknown_scores(z_BD, logits_BK)
