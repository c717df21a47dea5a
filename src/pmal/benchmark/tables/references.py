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
    """Return name and key of the softmax of equal cost, else of twice the epochs, else None."""
    for name, other in ((EQUAL, equal_cost(key, results)), (TWICE, _twice_the_epochs(key))):
        if other is not None and pair(results, softmax_results(other, groups)):
            return name, other
    return None


def equal_cost(key: Key, results: Sequence[Result]) -> Key | None:
    """Return the softmax that costs as much as all trainings of a method.

    None: this is the softmax of as many epochs, or the cost is not known.
    """
    passes = mean_passes(results)
    epochs = key.epochs if passes is None else epochs_at_cost(passes)
    return None if epochs == key.epochs else key.softmax(epochs)


def equal_ensembles(key: Key, results: Sequence[Result], groups: Groups) -> list[Key]:
    """Return the ensembles of softmaxes that cost as much as all trainings of a method."""
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
    """Return the plain classifiers that runs started from, as if each had its own record."""
    return [
        Result(result.cell, {**result.record["softmax"], "score": "logit", "passes": result.cell.epochs})
        for result in results
        if "softmax" in result.record
    ]


def softmax_results(key: Key, groups: Groups) -> list[Result]:
    """Return the results of a softmax, with the first classifiers of runs that train twice.

    A record of its own replaces the first classifier of the same split and seed.
    """
    twice = (found for other, found in groups.items() if other.softmax(other.epochs) == key)
    return [*(one for found in twice for one in first_classifiers(found)), *groups.get(key, [])]


def _twice_the_epochs(key: Key) -> Key | None:
    """Return the softmax of twice the epochs, the comparison before costs were counted."""
    equal = key.second_epochs in (0, key.epochs)
    return key.softmax(2 * key.epochs) if equal and is_trained_again(key.method) else None
