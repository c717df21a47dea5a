"""Results that may be averaged: the same method, data, family, encoder, recipe, epochs and settings.

Only split and seed differ within a group, so that no mean mixes what does not belong together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pmal.benchmark.ledger import Result
from pmal.benchmark.methods import concerns, epochs_text, total_epochs
from pmal.benchmark.statistics import Difference, Mean, mean_over_splits, paired_difference

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

    @property
    def recipe_text(self) -> str:
        return ", ".join([self.encoder, self.recipe, *self.settings])

    @property
    def epochs_text(self) -> str:
        return epochs_text(self.method, self.epochs)

    def softmax(self, epochs: int) -> "Key":
        """The softmax that it is compared with."""
        settings = tuple(s for s in self.settings if concerns("softmax", s))
        return Key(self.family, self.source, self.encoder, self.recipe, settings, "softmax", epochs)

    @property
    def equally_long(self) -> "Key":
        return self.softmax(total_epochs(self.method, self.epochs))


Groups = dict[Key, list[Result]]


def group_results(results: Iterable[Result]) -> Groups:
    groups: Groups = defaultdict(list)
    for result in results:
        groups[_key(result)].append(result)
    return dict(sorted(groups.items(), key=lambda item: _order(item[0])))


def main_results(results: Sequence[Result]) -> list[Result]:
    """Without the variations of an ablation, which have tables of their own.

    One that was asked for by itself on another split counts: a mean must not lack the splits that an ablation
    had done before.
    """
    asked = {_key(result) for result in results if result.record.get("grid") is None}
    return [result for result in results if _key(result) in asked]


def accuracy(result: Result) -> float:
    return 100 * result.accuracy()


def auroc(score: str | None) -> Measure:
    """By this score; None: by the one that the method itself rejects by."""

    def measure(result: Result) -> float | None:
        value = result.auroc(score or result.score)
        return None if value is None else 100 * value

    return measure


def average(results: Sequence[Result], measure: Measure) -> Mean | None:
    """Mean over splits of a figure, where the results have it."""
    found = [(result.cell.split, measure(result)) for result in results]
    return mean_over_splits((split, value) for split, value in found if value is not None)


def compare(pairs: Sequence[tuple[Result, Result]], measure: Measure) -> Difference | None:
    """Mean difference of a figure within pairs, where both have it."""
    found = [(one.cell.split, measure(one), measure(other)) for one, other in pairs]
    return paired_difference((split, a - b) for split, a, b in found if a is not None and b is not None)


def pair(results: Sequence[Result], others: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Results of the same split and seed."""
    by_place = {(other.cell.split, other.cell.seed): other for other in others}
    places = [(result, (result.cell.split, result.cell.seed)) for result in results]
    return [(result, by_place[place]) for result, place in places if place in by_place]


def first_classifiers(results: Sequence[Result]) -> list[Result]:
    """The plain classifiers that the runs went on from, as if each had a record of its own."""
    return [
        Result(result.cell, {**result.record["softmax"], "score": "logit"})
        for result in results
        if "softmax" in result.record
    ]


def softmax_results(key: Key, groups: Groups) -> list[Result]:
    """Of a softmax: where it has no record of its own, the first classifiers of runs that train twice."""
    twice = (found for other, found in groups.items() if other.softmax(other.epochs) == key)
    return [*(one for found in twice for one in first_classifiers(found)), *groups.get(key, [])]


def splits_text(results: Sequence[Result]) -> str:
    """Which splits and seeds."""
    splits = ", ".join(map(str, sorted({result.cell.split for result in results})))
    seeds = ", ".join(map(str, sorted({result.cell.seed for result in results})))
    return f"{splits}; seed {seeds}"


def _key(result: Result) -> Key:
    cell = result.cell
    return Key(cell.family, cell.source, cell.encoder, cell.recipe, cell.settings, cell.method, cell.epochs)


def _order(key: Key) -> tuple[str, ...]:
    return (key.family, key.source, key.recipe_text, key.method, f"{key.epochs:06d}")
