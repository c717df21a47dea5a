"""One cell of the benchmark: a method on one split with one seed, and all else that decides its figures.

Two cells are the same if all their fields are the same. The file of a cell is named by them. A data set
or recipe that the user gives as a path is named by its last part and a digest: of the path for a data
set, of the content for a recipe.
"""

import dataclasses
import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmal.benchmark.cells.asked_methods import concerns
from pmal.config import (
    RunConfig,
    build,
    list_recipes,
    merge,
    parse_assignment,
    read_recipe,
    to_settings,
    to_toml_value,
)
from pmal.data.sources.readers import absolute_source, is_named
from pmal.errors import UsageError

FIT, FLUCTUATION, ENSEMBLE = "fit", "fluctuation", "ensemble"
"""What is measured in a cell: a whole run, how much prototypes change from one mining to the next, or the
mean of the classifiers' logits."""
_NETWORKS = "ensemble.size="

_OPTIONS = {
    "method": "--methods",
    "seed": "--seeds",
    "data.source": "--data",
    "data.family": "--family",
    "data.split": "--splits",
    "encoder.name": "--encoder",
    "training.epochs": "--epochs",
}


@dataclass(frozen=True)
class Cell:
    """What a row of results is about. `settings` have the form of --set and are sorted."""

    method: str
    source: str
    family: str
    split: int
    seed: int
    encoder: str
    recipe: str
    epochs: int
    settings: tuple[str, ...] = ()
    measure: str = FIT
    source_path: str = field(default="", compare=False)
    """Path of the source, if it is not a named set."""
    recipe_path: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Readable name that no other cell has: also the path of the cell's file, without the suffix."""
        words = [f"{self.source}-{self.family}{self.split}", self.encoder, f"{self.recipe}{self.epochs}"]
        words += [_short(text) for text in self.settings] + [f"seed{self.seed}"]
        plain = "-".join(words)
        name = re.sub(r"[^\w.+@-]", "_", plain, flags=re.ASCII)
        if name != plain or len(name) > 150:
            name = f"{name[:130]}-{_digest(plain)}"
        return f"{self.method if self.measure == FIT else self.measure}/{name}"

    def config(self) -> RunConfig:
        """Return the settings of the run."""
        named = {
            "method": self.method,
            "seed": self.seed,
            "data": {
                "source": absolute_source(self.source_path or self.source),
                "family": self.family,
                "split": self.split,
            },
            "encoder": {"name": self.encoder},
            "training": {"epochs": self.epochs, "min_steps": 0},
        }
        recipe, *given = _layers(self.recipe_path or self.recipe, self.settings)
        return build(RunConfig, merge(recipe, merge(*given, named)))

    @property
    def networks(self) -> int:
        """Number of networks that answer together."""
        sizes = [s.removeprefix(_NETWORKS) for s in self.settings if s.startswith(_NETWORKS)]
        return int(sizes[0]) if self.measure == ENSEMBLE else 1

    def together(self, networks: int) -> "Cell":
        """Return the cell of an ensemble of this many networks, whose logits are averaged."""
        others = (s for s in self.settings if not s.startswith(_NETWORKS))
        settings = tuple(sorted([*others, f"{_NETWORKS}{networks}"]))
        return dataclasses.replace(self, settings=settings, measure=ENSEMBLE)

    def command(
        self, grid: str | None = None, base: tuple[str, ...] | None = None, method: str | None = None
    ) -> str:
        """Return the command that computes this cell again.

        For a cell of a grid, the command computes the whole grid.

        Args:
            grid: the grid that the cell belongs to.
            base: the settings that the grid varies. None: those of the cell.
            method: the name to write after --methods, if it is not the cell's own.
        """
        grid = grid or (FLUCTUATION if self.measure == FLUCTUATION else None)
        words = ["pmal", "benchmark", *(["--grid", grid] if grid else ["--methods", method or self.method])]
        words += ["--data", self.source_path or self.source, "--family", self.family]
        words += ["--splits", str(self.split), "--seeds", str(self.seed), "--encoder", self.encoder]
        words += ["--recipe", self.recipe_path or self.recipe, "--epochs", str(self.epochs)]
        settings = self.settings if base is None else base
        return shlex.join(words + [word for text in settings for word in ("--set", text)])

    def about(self) -> dict[str, Any]:
        """Return the cell as the ledger stores it, without paths."""
        words = dataclasses.asdict(self)
        return {name: value for name, value in words.items() if not name.endswith("_path")}


def cell_of(record: Mapping[str, Any]) -> Cell:
    """Return the cell that a record of the ledger is about.

    Records of earlier versions store it in another form, which is read too.
    """
    if "cell" in record:
        words = dict(record["cell"])
        return Cell(**(words | {"settings": tuple(words["settings"])}))
    about = record["about"]
    family, _, split = about["split"].partition("/")
    return Cell(
        method=about["method"],
        source=about["source"],
        family=family,
        split=int(split),
        seed=about["seed"],
        encoder=about["encoder"],
        recipe=record["recipe"],
        epochs=about["epochs"],
        settings=tuple(record.get("settings", ())),
    )


def make_cell(
    method: str,
    source: str,
    family: str,
    split: int,
    seed: int,
    *,
    recipe: str,
    encoder: str | None = None,
    epochs: int | None = None,
    settings: Iterable[str] = (),
    measure: str = FIT,
) -> Cell:
    """Return a cell with all its fields filled in, those that are not given from the recipe.

    Args:
        method: its name.
        source: a named data set, or the path of the user's own data.
        family: the split family, by its own name.
        split: index of the split in its family.
        seed: seed of the run.
        recipe: a shipped recipe, or the path of a file.
        encoder: None: the recipe's.
        epochs: None: the recipe's.
        settings: in the form of --set.
        measure: what is measured: `FIT`, `FLUCTUATION` or `ENSEMBLE`.

    Raises:
        UsageError: a setting has an option of its own.
    """
    settings = tuple(settings)
    for text in settings:
        key = text.partition("=")[0].strip()
        if key in _OPTIONS:
            raise UsageError(f"--set {text}: a cell is named by it: use {_OPTIONS[key]}")
    config = build(RunConfig, merge(*_layers(recipe, settings)))
    own_source, own_recipe = not is_named(source), recipe not in list_recipes()
    return Cell(
        method=method,
        source=_label(source, absolute_source(source).encode()) if own_source else source,
        family=family,
        split=split,
        seed=seed,
        encoder=encoder or config.encoder.name,
        recipe=_label(recipe, Path(recipe).read_bytes()) if own_recipe else recipe,
        epochs=epochs or config.training.epochs,
        settings=tuple(s for s in plain_settings(recipe, settings, method) if concerns(method, s)),
        measure=measure,
        source_path=source if own_source else "",
        recipe_path=recipe if own_recipe else "",
    )


def plain_settings(recipe: str, settings: Iterable[str], method: str = "pmal") -> tuple[str, ...]:
    """Return settings in one spelling, sorted, so that a cell has one name only.

    Settings that the recipe or the method has anyway are left out.

    >>> plain_settings("strong", ["optimization.weight=2.0", "mining.per_class=10", "data.limit = 5"])
    ('data.limit=5', 'optimization.weight=2')
    """
    layers = [{"method": method}, *_layers(recipe, settings)]
    config = build(RunConfig, merge(*layers))
    usual = _default_options(config) | _explicit(build(RunConfig, merge(*layers[:2])))
    wanted = _explicit(config)
    names = [name for name in wanted if wanted[name] != usual.get(name)]
    return tuple(sorted(f"{name}={_text(wanted[name])}" for name in names))


def _layers(recipe: str, settings: Iterable[str]) -> list[dict[str, Any]]:
    return [read_recipe(recipe), *map(parse_assignment, settings)]


def _explicit(config: RunConfig) -> dict[str, Any]:
    """Return all settings, with the actual number of classifiers in place of 0."""
    return _flat(to_settings(config)) | {"ensemble.size": config.classifiers}


def _default_options(config: RunConfig) -> dict[str, Any]:
    """Return the default options of method and encoder, by setting; only where options are set."""
    # Imported here, because their modules import torch and tables do not need it.
    found: dict[str, Any] = {}
    if config.method_options:
        from pmal.ensemble.heads import default_options, final_head

        found["method_options"] = default_options(final_head(config).name)
    if config.encoder.options:
        from pmal.encoders import registry

        found["encoder"] = {"options": registry.default_options(config.encoder.name)}
    return _flat(found)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        deeper = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if deeper else {f"{prefix}{name}": value}
    return flat


def _text(value: Any) -> str:
    """Return a value in the form that --set takes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        quoted = (to_toml_value(item) if isinstance(item, str) else _text(item) for item in value)
        return f"[{', '.join(quoted)}]"
    if isinstance(value, str):  # quoted only if it would be read as another type, such as a number
        return value if parse_assignment(f"bare={value}") == {"bare": value} else to_toml_value(value)
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _short(setting: str) -> str:
    """Return the setting as a file name shows it: without its section, if no other section has this field."""
    name, _, value = setting.partition("=")
    _, _, last = name.partition(".")
    return f"{last if _FIELDS[last] == 1 else name}{value}"


_FIELDS = Counter(name.partition(".")[2] for name in _flat(to_settings(RunConfig())))


def _label(path: str, content: bytes) -> str:
    return f"{Path(path).stem}@{hashlib.sha256(content).hexdigest()[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
