"""Results that may be averaged: the same method, data, family, encoder, recipe, epochs and settings.

Only split and seed differ within a group, so a mean never mixes different experiments.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pmal.benchmark.cells.asked_methods import concerns, epochs_text
from pmal.benchmark.ledger import Result
from pmal.benchmark.tables.statistics import Difference, Mean, mean_over_splits, paired_difference

Measure = Callable[[Result], float | None]


@dataclass(frozen=True)
class Key:
    """What the results of a group have in common."""

    family: str
    source: str
    encoder: str
    recipe: str
    settings: tuple[str, ...]
    method: str
    epochs: int
    second_epochs: int = 0
    """Epochs of the second training if it has its own number, else 0."""
    networks: int = 1
    """Number of networks that answer together."""

    @property
    def name(self) -> str:
        """Name of the method in tables."""
        return f"{self.method} ensemble of {self.networks}" if self.networks > 1 else self.method

    @property
    def shown_settings(self) -> tuple[str, ...]:
        """Settings without those that the name or the epochs show."""
        said = ("optimization.epochs=",) if self.second_epochs else ()
        return tuple(s for s in self.settings if not s.startswith(said))

    @property
    def recipe_text(self) -> str:
        """Encoder, recipe and settings, as tables show them."""
        return ", ".join([self.encoder, self.recipe, *self.shown_settings])

    @property
    def epochs_text(self) -> str:
        """Epochs of each training, as tables show them."""
        return epochs_text(self.method, self.epochs, self.second_epochs)

    def softmax(self, epochs: int) -> "Key":
        """Return the key of the softmax that the group is compared with."""
        settings = tuple(s for s in self.settings if concerns("softmax", s))
        return Key(self.family, self.source, self.encoder, self.recipe, settings, "softmax", epochs)


Groups = dict[Key, list[Result]]


def group_results(results: Iterable[Result]) -> Groups:
    """Return results by group, in the order of the tables."""
    groups: Groups = defaultdict(list)
    for result in results:
        groups[key_of(result)].append(result)
    return dict(sorted(groups.items(), key=lambda item: _order(item[0])))


def main_results(results: Sequence[Result]) -> list[Result]:
    """Return results without the variations of an ablation, which have tables of their own.

    If one cell of a group was requested on its own, all cells of the group count. The mean then includes the
    splits that an ablation had computed before.
    """
    asked = {key_of(result) for result in results if result.record.get("grid") is None}
    return [result for result in results if key_of(result) in asked]


def accuracy(result: Result) -> float:
    """Return the accuracy of a result in percent."""
    return 100 * result.accuracy()


def auroc(score: str | None) -> Measure:
    """Return a function that gives the AUROC of a result in percent.

    Args:
        score: by which score. None: the one that the method itself rejects by.
    """

    def measure(result: Result) -> float | None:
        value = result.auroc(score or result.score)
        return None if value is None else 100 * value

    return measure


def average(results: Sequence[Result], measure: Measure) -> Mean | None:
    """Return the mean of a figure over splits. None: no result has it."""
    found = [(result.cell.split, measure(result)) for result in results]
    return mean_over_splits((split, value) for split, value in found if value is not None)


def compare(pairs: Sequence[tuple[Result, Result]], measure: Measure) -> Difference | None:
    """Return the mean difference of a figure within pairs. None: no pair has it on both sides."""
    found = [(one.cell.split, measure(one), measure(other)) for one, other in pairs]
    return paired_difference((split, a - b) for split, a, b in found if a is not None and b is not None)


def pair(results: Sequence[Result], others: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Return pairs of results that have the same split and seed."""
    by_place = {(other.cell.split, other.cell.seed): other for other in others}
    places = [(result, (result.cell.split, result.cell.seed)) for result in results]
    return [(result, by_place[place]) for result, place in places if place in by_place]


def mean_passes(results: Sequence[Result]) -> float | None:
    """Return the mean passes per training image of a group. None: no record has them."""
    found = [result.passes for result in results if result.passes is not None]
    return statistics.fmean(found) if found else None


def splits_text(results: Sequence[Result]) -> str:
    """Return the splits and seeds of results as text."""
    splits = ", ".join(map(str, sorted({result.cell.split for result in results})))
    seeds = ", ".join(map(str, sorted({result.cell.seed for result in results})))
    return f"{splits}; seed {seeds}"


def key_of(result: Result) -> Key:
    """Return the group that a result belongs to."""
    cell, networks = result.cell, result.cell.networks
    settings = tuple(s for s in cell.settings if networks == 1 or concerns(cell.method, s))
    return Key(
        family=cell.family,
        source=cell.source,
        encoder=cell.encoder,
        recipe=cell.recipe,
        settings=settings,
        method=cell.method,
        epochs=cell.epochs,
        second_epochs=result.second_epochs,
        networks=networks,
    )


def _order(key: Key) -> tuple[str, ...]:
    lengths = (f"{key.epochs:06d}", f"{key.second_epochs:06d}")
    return (key.family, key.source, key.recipe_text, key.name, *lengths)
