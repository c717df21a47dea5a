"""The paper's ablations as named grids: which settings each varies, with the paper's labels."""

from collections.abc import Sequence
from dataclasses import dataclass

from pmal.benchmark.cells.cell import FIT, FLUCTUATION
from pmal.errors import unknown_name


@dataclass(frozen=True)
class Variant:
    """One row of an ablation: the settings that it adds to the common ones."""

    label: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """Variants that differ only in the settings of this sweep."""

    name: str
    variants: tuple[Variant, ...]

    @property
    def fields(self) -> frozenset[str]:
        """Names of the settings that the sweep varies."""
        return frozenset(text.partition("=")[0] for variant in self.variants for text in variant.settings)


def _parts(quality: bool, diversity: bool, point_to_set: bool) -> tuple[str, ...]:
    return (
        f"mining.quality={'topology' if quality else 'none'}",
        f"mining.diversity={'gap' if diversity else 'none'}",
        f"optimization.distance={'point-to-set' if point_to_set else 'nearest'}",
    )


def _rules(quality: str = "topology", diversity: str = "gap") -> tuple[str, ...]:
    return (f"mining.quality={quality}", f"mining.diversity={diversity}")


def _values(name: str, field: str, values: Sequence[float]) -> Sweep:
    return Sweep(name, tuple(Variant(f"{value:g}", (f"{field}={value:g}",)) for value in values))


COMPONENTS = Sweep(
    "components",
    (
        Variant("(a) quality", _parts(True, False, False)),
        Variant("(b) diversity", _parts(False, True, False)),
        Variant("(c) quality, point-to-set", _parts(True, False, True)),
        Variant("(d) diversity, point-to-set", _parts(False, True, True)),
        Variant("(e) quality, diversity", _parts(True, True, False)),
        Variant("(f) quality, diversity, point-to-set", _parts(True, True, True)),
    ),
)
RULES = Sweep(
    "quality or diversity",
    (
        Variant("quality: probability", _rules(quality="probability")),
        Variant("quality: deep ensembles", _rules(quality="ensemble")),
        Variant("quality: MC dropout", _rules(quality="mc-dropout")),
        Variant("diversity: random", _rules(diversity="random")),
        Variant("diversity: clustering", _rules(diversity="kmeans")),
        Variant("topology and gap (ours)", _rules()),
    ),
)
PROTOTYPES = _values("T", "mining.per_class", (1, 5, 10, 20, 30))
EPSILON = _values("epsilon", "mining.epsilon", (0.1, 0.3, 0.5, 0.7, 0.9))
ENSEMBLE = _values("U", "ensemble.size", (2, 3, 4, 5, 6))
MARGIN = _values("margin", "optimization.margin", (0.1, 0.3, 0.5, 0.8, 1.0))
WEIGHT = _values("lambda", "optimization.weight", (0.5, 0.8, 1.0, 2.0))

MININGS = 3
"""Repetitions of the mining. Each has its own pair of classifiers."""
REPEATED = Sweep("fluctuation", (Variant("three minings", (f"ensemble.size={2 * MININGS}",)),))

GRIDS: dict[str, tuple[Sweep, ...]] = {
    "table3": (COMPONENTS,),
    "table4": (RULES,),
    "table5": (PROTOTYPES, EPSILON, ENSEMBLE, MARGIN),
    "lambda": (WEIGHT,),
    "fluctuation": (REPEATED,),
}


def find_grid(name: str) -> tuple[Sweep, ...]:
    """Return the sweeps of a grid by its name.

    Raises:
        UsageError: there is no such grid.
    """
    if name not in GRIDS:
        raise unknown_name("grid", name, GRIDS)
    return GRIDS[name]


def measure_of(grid: str | None) -> str:
    """Return what is measured in the cells of a grid: whole runs, or how prototypes fluctuate."""
    return FLUCTUATION if grid == "fluctuation" else FIT
