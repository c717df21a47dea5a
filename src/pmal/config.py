"""What a run is made of: dataclasses that read from and write to TOML.

A docstring under a field is its help text, on the command line and in error messages. A recipe is a TOML file
with the same sections; `--set training.epochs=5` changes one field.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import math
import os
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pmal.errors import UsageError, unknown_name

Config = TypeVar("Config")


@dataclass(frozen=True)
class Allowed:
    """What a value may be: a test of it, and the words for what it must be."""

    allows: Callable[[Any], bool]
    words: str

    def __str__(self) -> str:
        return self.words


def within(low: float, end: float = math.inf, above: bool = False) -> Allowed:
    """Return the numbers from `low` (not equal to it if `above`) to below `end`; NaN is never among them."""
    start = f"above {low:g}" if above else f"{low:g} or more"
    words = start if end == math.inf else f"{start}, below {end:g}"
    return Allowed(lambda value: (value > low if above else value >= low) and value < end, words)


def one_of(*values: Any) -> Allowed:
    """Return these values, each of its own type alone."""
    words = " or ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in values)
    return Allowed(lambda value: any(type(value) is type(one) and value == one for one in values), words)


def zero_or(allowed: Allowed) -> Allowed:
    """Return 0, which leaves the choice to the program, and what else is allowed."""
    return Allowed(lambda value: value == 0 or allowed.allows(value), f"0, or {allowed}")


Count = Annotated[int, within(1)]
Share = Annotated[float, within(0, 1)]
Positive = Annotated[float, within(0, above=True)]
TEMPERATURES = within(1e-100, 1e100)
"""Temperatures of the robustness exp(-x / temperature). Beyond these, its logarithm overflows."""


def check_option(option: inspect.Parameter, value: Any, where: str, *always: Allowed) -> None:
    """Refuse another type than that of an option's default, and what its annotation does not allow."""
    kind = type(option.default)
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise UsageError(f"{where}.{option.name} = {value!r}: expected {kind.__name__}")
    for allowed in (*getattr(option.annotation, "__metadata__", ()), *always):
        if not allowed.allows(value):
            raise UsageError(f"{where}.{option.name} = {value}: must be {allowed}")


class Checked:
    """A config whose numbers lie within what their annotations allow, however it was made."""

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            for allowed in getattr(hint, "__metadata__", ()):
                if not allowed.allows(getattr(self, name)):
                    raise UsageError(f"{name} = {getattr(self, name)!r}: must be {allowed}")


@dataclass(frozen=True)
class DataConfig(Checked):
    """Which samples are learned, and how they are shown to the network."""

    source: str = "sample"
    """A data set's name, a folder of class folders, a Parquet file or folder, an .npz file, or embeddings."""
    family: str = "auto"
    """arpl, neal, paper, first, lt, random, named, all. Auto: arpl, or what the set has; all for own data."""
    split: Annotated[int, within(0)] = 0
    """Index of the split in its family; for family random, the seed of the draw."""
    known: tuple[str, ...] = ()
    """Names of the known classes (family named)."""
    num_known: Annotated[int, within(0)] = 0
    """How many classes are known (family random). 0: six tenths of them."""
    image_size: Annotated[int, within(0)] = 0
    """Side of the square images in pixels. 0: the images' own size, or 64 if they differ."""
    augmentation: str = "standard"
    """none, standard (crop, flip), strong (affine, color, cutout too), randaugment-0 to -30 or imagenet."""
    flip: str = "auto"
    """Mirror images: yes, no, or auto (not for digits)."""
    limit: Annotated[int, within(0)] = 0
    """At most so many training images per class, the same ones in every run. 0: all."""
    long_tail: Annotated[float, zero_or(within(1))] = 0.0
    """Draw a long tail: the largest class keeps so many times the training images of the smallest. 0: no."""
    held_out: Share = 0.1
    """Share of each class held out for the threshold; at least 40 images, or a third, in all. 0: none."""
    folds: Annotated[int, zero_or(within(2))] = 0
    """Parts held out in turn, of up to 2,000 images: the model learns from all of them. 0: none."""


@dataclass(frozen=True)
class Resources:
    """Where a run finds its data and its speed. None of it changes the result, so it is not saved with it."""

    device: str = "auto"
    """auto, cpu, cuda, or cuda:N."""
    data_root: str | None = None
    """Folder in which named data sets are looked for; default $PMAL_DATA."""
    workers: int = 0
    """Processes that decode the images of a streamed set. 0: one per CPU core."""
    memory_limit: float = 8.0
    """GiB of decoded images up to which a set is held on the device; larger ones are streamed."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints of a training: what is lost at most when the machine dies."""
    cache: str | None = None
    """Folder on a fast disk in which a streamed training set is kept decoded until the command ends."""


@dataclass(frozen=True)
class EncoderConfig(Checked):
    """The network from image to embedding."""

    name: str = "oscri"
    """Pretrained and frozen: efficientnet_lite0, efficientnet_lite1, hf/NAME. To train: oscri, small, ..."""
    weights: str = ""
    """A .safetensors file with the encoder's weights: a pretrained one stays so, others begin with them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that encoder."""
    finetune: Annotated[str, one_of("none", "last", "all")] = "none"
    """Train a pretrained network further on your images: none, last (its last quarter) or all of it."""
    finetune_epochs: Count = 10
    """Passes of fine-tuning over the training set."""
    finetune_rate: Positive = 0.01
    """Peak learning rate of the layer that is new; that of a block falls with its distance from it."""
    finetune_decay: Annotated[float, within(0, 1, above=True)] = 0.8
    """Learning rate of a block as a share of that of the block after it."""
    projection: Annotated[str, one_of("none", "linear")] = "none"
    """none, or linear: one more linear layer after the pooling, so that embeddings are not rectified."""
    bias: bool = True
    """Give the linear classification head a bias."""


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """How a network is trained."""

    epochs: Count = 100
    """Passes over the training set."""
    min_steps: Annotated[int, within(0)] = 0
    """Small sets are passed over more often than `epochs`, until so many steps are done. 0: they are not."""
    batch_size: Annotated[int, within(2)] = 128
    """Images per step."""
    optimizer: str = "sgd"
    """sgd (Nesterov) or adam."""
    learning_rate: Positive = 0.1
    """Peak learning rate."""
    momentum: Share = 0.9
    """Momentum of SGD; first beta of Adam."""
    weight_decay: Annotated[float, within(0)] = 5e-4
    """L2 penalty on all weights."""
    schedule: str = "cosine"
    """cosine (to zero), or steps (times 0.1 every `step_epochs`)."""
    warmup_epochs: Annotated[float, within(0)] = 5.0
    """Epochs of linear warm-up of the learning rate; at most a fifth of the training."""
    restarts: Annotated[int, within(0)] = 0
    """How often the schedule cosine starts again from the peak, after equal parts of the training."""
    step_epochs: Count = 120
    """Epochs between two drops of the schedule steps."""
    label_smoothing: Share = 0.0
    """Share of the target probability spread over all classes."""
    ema: Share = 0.0
    """Decay of an exponential moving average of the weights, used for everything after training. 0: off."""
    precision: str = "auto"
    """float32, bfloat16 (mixed), or auto: bfloat16 if the GPU has it."""
    sync_batch_norm: bool = False
    """Batch norm of several processes over the whole batch instead of each process's share of it."""


@dataclass(frozen=True)
class EnsembleConfig(Checked):
    """The independently seeded classifiers."""

    size: Annotated[int, within(0)] = 0
    """How many classifiers are trained. 0: two for pmal, one for other methods."""


@dataclass(frozen=True)
class MiningConfig(Checked):
    """Which training images become prototypes."""

    per_class: Count = 10
    """Prototypes per class."""
    epsilon: Annotated[float, within(0)] = 0.7
    """Candidates have at least this share of the quality of their class's best."""
    quality: str = "topology"
    """topology, probability, ensemble, mc-dropout, logit or none."""
    diversity: str = "gap"
    """gap (Algorithm 1), random, kmeans, kcenter or none."""
    topology: str = "unit"
    """unit, rms or literal (the paper's text)."""
    temperature: Annotated[float, zero_or(TEMPERATURES)] = 0.0
    """What a difference of topology is divided by before the exponent. 0: the median."""
    precision: Annotated[str, one_of("exact", "fast")] = "exact"
    """exact, or fast: fewer digits if the device gains time by it."""
    landmarks: Annotated[int, zero_or(within(2))] = 0
    """Estimate the topology from so many random samples. 0: from all."""


@dataclass(frozen=True)
class OptimizationConfig(Checked):
    """The second training, which pulls samples to their class's prototypes and away from the others'."""

    epochs: Annotated[int, within(0)] = 0
    """Passes of the second training over the training set. 0: as many as training.epochs."""
    learning_rate: Annotated[float, zero_or(within(0, above=True))] = 0.0
    """Peak learning rate of the second training. 0: training.learning_rate."""
    margin: Annotated[float, within(0)] = 0.5
    """By how much a sample shall be nearer to its own class's prototypes than to any other's (0 to 2)."""
    temperature: Annotated[float, zero_or(within(1e-4))] = 0.0
    """Temperature of the loss. At 0, the paper's hinge, only the nearest other class counts; else all do."""
    weight: Annotated[float, within(0)] = 1.0
    """Weight of the prototype loss next to the cross entropy."""
    distance: Annotated[str, one_of("point-to-set", "nearest")] = "point-to-set"
    """point-to-set (attention over a class's prototypes) or nearest (the nearest prototype alone)."""
    init: Annotated[str, one_of("warm", "scratch")] = "warm"
    """warm (from the first classifier) or scratch (from new random weights)."""
    refresh: Annotated[int, within(0)] = 0
    """Prototypes embedded again at each step, in turn. 0: all up to two batches of them, else one batch."""


@dataclass(frozen=True)
class RejectionConfig(Checked):
    """Where known ends."""

    score: str = "auto"
    """The score to reject by, such as logit or distance. Auto: combined for pmal, else the paper's."""
    accept: Annotated[float, within(0, 1, above=True)] = 0.95
    """Share of known images that the threshold accepts at least."""
    per_class: bool = False
    """One threshold per predicted class instead of one for all."""


@dataclass(frozen=True)
class RunConfig(Checked):
    """Everything that decides the result of a run."""

    method: str = "pmal"
    """The open-set method: pmal, softmax, or one of those that it is compared with."""
    method_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a method to compare with; its own page says which it has."""
    seed: Annotated[int, within(0)] = 0
    """Every random stream of the run comes from this number."""
    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    rejection: RejectionConfig = field(default_factory=RejectionConfig)

    @property
    def classifiers(self) -> int:
        """How many classifiers are trained."""
        return self.ensemble.size or (2 if self.method == "pmal" else 1)

    @property
    def second_training(self) -> TrainingConfig:
        """How the network is trained a second time."""
        own, first = self.optimization, self.training
        rate = own.learning_rate or first.learning_rate
        return dataclasses.replace(first, epochs=own.epochs or first.epochs, learning_rate=rate)


OWN = "own"
"""Stands for the recipe of the method's paper or public code."""


def list_recipes() -> list[str]:
    """Return the names of all recipes: those for every method, then those of single methods."""
    return [*_recipes(), *_recipes("published", "published/tinyimagenet")]


def describe_recipes() -> str:
    """Return the recipes for all methods as text, for the help of an option."""
    return f"{', '.join(_recipes())}, {OWN} (as the method was published), or a TOML file"


def own_recipe(method: str, source: str) -> str:
    """Return the recipe that a method was published with, for this data set if it has one.

    >>> own_recipe("arpl+cs", "cifar10"), own_recipe("softmax", "tinyimagenet"), own_recipe("pmal", "svhn")
    ('arpl', 'softmax-tinyimagenet', 'paper')
    """
    base = "paper" if method == "pmal" else method.partition("+")[0]
    for name in (f"{base}-{source}", base):
        if name in list_recipes():
            return name
    raise UsageError(f"recipe {OWN}: method {method} has none: choose {', '.join(_recipes())} or a file")


def _recipes(*folders: str) -> dict[str, Any]:
    """Return the recipe files in folders of the package's recipes, by name."""
    root = resources.files("pmal") / "recipes"
    files = [entry for folder in folders or (".",) for entry in (root / folder).iterdir()]
    names = {entry.name.removesuffix(".toml"): entry for entry in files if entry.name.endswith(".toml")}
    return dict(sorted(names.items()))


def read_recipe(recipe: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings of a recipe: one that comes with the package, or any TOML file."""
    name = os.fspath(recipe)
    shipped = _recipes(".", "published", "published/tinyimagenet")
    if name in shipped:
        text = shipped[name].read_text(encoding="utf-8")
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"recipe {name}: {error.strerror}") from None
        except ValueError:
            raise UsageError(f"recipe {name}: not text in UTF-8") from None
    else:
        raise unknown_name("recipe", name, [*shipped, OWN, "or a path ending in .toml"])
    return parse_toml(text, name)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the settings in a TOML text; `where` is what an error calls it."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not valid TOML ({error})") from None


def parse_assignment(text: str) -> dict[str, Any]:
    """Return one `--set` option as nested settings; a bare word counts as a string.

    >>> parse_assignment("training.epochs=5")
    {'training': {'epochs': 5}}
    >>> parse_assignment("data.augmentation=strong")
    {'data': {'augmentation': 'strong'}}
    """
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UsageError(f"--set {text}: write it as section.field=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    nested: dict[str, Any] = parsed
    return nested


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings, later layers over earlier ones.

    Options go with the name that they were set for.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    >>> merge({"encoder": {"name": "oscri", "options": {"dropout": 0.2}}}, {"encoder": {"name": "small"}})
    {'encoder': {'name': 'small'}}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if isinstance(value, Mapping) and isinstance(old, Mapping):
                renamed = "name" in old and value.get("name", old["name"]) != old["name"]
                kept = {name: inner for name, inner in old.items() if not (renamed and name == "options")}
                value = merge(kept, value)
            merged[key] = value
    return merged


def build(cls: type[Config], settings: Mapping[str, Any], where: str = "") -> Config:
    """Return a config dataclass from nested settings.

    A field that does not exist or has another type is named.
    """
    hints = typing.get_type_hints(cls)
    for name in settings:
        if name not in hints:
            raise unknown_name("setting", f"{where}{name}", [f"{where}{valid}" for valid in hints])
    values = {name: _convert(hints[name], value, f"{where}{name}") for name, value in settings.items()}
    try:
        return cls(**values)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None


def to_settings(config: Any) -> dict[str, Any]:
    """Return the nested settings of a config dataclass: the opposite of `build`."""
    settings: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return settings


def to_toml(settings: Mapping[str, Any], prefix: str = "") -> str:
    """Return nested settings as TOML text; `tomllib.loads` gives them back."""
    plain = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    lines = [f"{name} = {to_toml_value(value)}" for name, value in plain.items()]
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{prefix}{name}]", to_toml(value, f"{prefix}{name}.").rstrip("\n")]
    return "\n".join(lines) + "\n"


def field_help(cls: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a config dataclass.

    >>> field_help(EnsembleConfig)
    {'size': 'How many classifiers are trained. 0: two for pmal, one for other methods.'}
    """
    [body] = [
        n.body for n in ast.parse(textwrap.dedent(inspect.getsource(cls))).body if isinstance(n, ast.ClassDef)
    ]
    return {
        before.target.id: inspect.cleandoc(after.value.value)
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(after.value.value, str)
    }


def to_toml_value(value: Any) -> str:
    """Return a text, number, truth value or list of them as TOML."""
    # JSON's notation is TOML's, but for surrogate pairs and the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UsageError(f"{where} = {value!r}: expected a section [{where}]")
        return build(typing.cast(type[Any], hint), value, f"{where}.")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f'{where} = {value!r}: expected a list such as ["a", "b"]')
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if origin is not None and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) and type(value) is hint:
        return value
    raise UsageError(f"{where} = {value!r}: expected {getattr(hint, '__name__', hint)}")
