"""What a method is compared with: softmaxes of as many epochs, and of the same cost."""

from collections.abc import Sequence
from dataclasses import replace

from pmal.benchmark.cells.asked_methods import is_trained_again
from pmal.benchmark.cells.passes import epochs_at_cost
from pmal.benchmark.ledger import Result
from pmal.benchmark.tables.groups import Groups, Key, mean_passes, pair

EQUAL, TWICE = "softmax of equal cost", "softmax of twice the epochs"


def references(key: Key, results: Sequence[Result], groups: Groups) -> dict[str, list[Result]]:
    """Return what a group is compared with, by name."""
    found = {f"softmax, {key.epochs}": first_classifiers(results) or groups.get(key.softmax(key.epochs), [])}
    if long := long_softmax(key, results, groups):
        name, other = long
        found[f"{name}, {other.epochs}"] = softmax_results(other, groups)
    ensembles = equal_ensembles(key, results, groups)
    return found | {f"{other.name}, {other.epochs}": groups[other] for other in ensembles}


def long_softmax(key: Key, results: Sequence[Result], groups: Groups) -> tuple[str, Key] | None:
    """Return the softmax of equal cost; where there is none, that of twice the epochs, or else None."""
    for name, other in ((EQUAL, equal_cost(key, results)), (TWICE, _twice_the_epochs(key))):
        if other is not None and pair(results, softmax_results(other, groups)):
            return name, other
    return None


def equal_cost(key: Key, results: Sequence[Result]) -> Key | None:
    """Return the softmax that costs as much as a method with all of its trainings.

    None where that is the softmax of as many epochs, or where the cost is not known.
    """
    passes = mean_passes(results)
    epochs = key.epochs if passes is None else epochs_at_cost(passes)
    return None if epochs == key.epochs else key.softmax(epochs)


def equal_ensembles(key: Key, results: Sequence[Result], groups: Groups) -> list[Key]:
    """Return the ensembles of softmaxes that cost as much as a method with all of its trainings."""
    passes = mean_passes(results)
    if passes is None:
        return []
    return [
        other
        for other in groups
        if other.networks > 1
        and other == replace(key.softmax(epochs_at_cost(passes, other.networks)), networks=other.networks)
    ]


def first_classifiers(results: Sequence[Result]) -> list[Result]:
    """The plain classifiers that the runs went on from, as if each had a record of its own."""
    return [
        Result(result.cell, {**result.record["softmax"], "score": "logit", "passes": result.cell.epochs})
        for result in results
        if "softmax" in result.record
    ]


def softmax_results(key: Key, groups: Groups) -> list[Result]:
    """Of a softmax: where it has no record of its own, the first classifiers of runs that train twice."""
    twice = (found for other, found in groups.items() if other.softmax(other.epochs) == key)
    return [*(one for found in twice for one in first_classifiers(found)), *groups.get(key, [])]


def _twice_the_epochs(key: Key) -> Key | None:
    """What methods with two equal trainings were compared with before their cost was counted."""
    equal = key.second_epochs in (0, key.epochs)
    return key.softmax(2 * key.epochs) if equal and is_trained_again(key.method) else None
