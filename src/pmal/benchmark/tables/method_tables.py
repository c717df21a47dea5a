"""The tables of the ledger: all methods, differences to softmax, and the paper's tables."""

import re
from collections.abc import Sequence

from pmal.benchmark.cells.cell import ENSEMBLE, FIT, FLUCTUATION
from pmal.benchmark.ledger import Ledger, Result
from pmal.benchmark.rendering import Beside, Entry, Table, entry_text
from pmal.benchmark.tables.ablation_tables import ablation_tables, fluctuation_table
from pmal.benchmark.tables.groups import (
    Groups,
    Key,
    accuracy,
    auroc,
    average,
    compare,
    group_results,
    main_results,
    mean_passes,
    pair,
    splits_text,
)
from pmal.benchmark.tables.paper import (
    ADDITIONAL_PARAMETERS,
    LARGE,
    LARGE_ROWS,
    METHOD_ROWS,
    SCORES,
    SMALL,
    Printed,
    method_tables,
)
from pmal.benchmark.tables.references import EQUAL, equal_cost, references
from pmal.benchmark.tables.statistics import LEAST
from pmal.data.splits.protocols import list_families, list_sets, split_defects

_PASSES = "Passes: how often an image goes through a network in all trainings, per training image."
COMMON_SCORES = ("probability", "logit", "energy", "distance", "neighbors", "combined")
_BESIDE = (
    "Ours ± deviation over splits (n: cells); the paper's figure, on splits of its own, and the difference."
)


def ledger_tables(ledger: Ledger) -> tuple[list[Table], list[str]]:
    """Return the tables of all methods and of differences to softmax, and a line per unreadable file."""
    results, broken = ledger.results(FIT, ENSEMBLE)
    return [*methods_tables(results), *paired_tables(results)], broken


def paper_tables(ledger: Ledger) -> tuple[list[Table], list[str]]:
    """Return the paper's tables in its order, and a line per unreadable file."""
    results, broken = ledger.results()
    minings, worse = ledger.results(FLUCTUATION)
    tables = [*_comparison(1, results), *_comparison(2, results), _parameters()]
    return [*tables, *ablation_tables(results), *fluctuation_table(minings)], broken + worse


def methods_tables(results: Sequence[Result]) -> list[Table]:
    """Return a table for each family: every group of results, by every score."""
    groups = group_results(main_results(results))
    scores = (f"AUROC {score}" for score in COMMON_SCORES)
    heads = ("data, splits", "encoder, recipe", "method, epochs", "passes", "n", "ACC", *scores)
    costs = {equal_cost(key, found) for key, found in groups.items() if key.method == "pmal"}
    tables = []
    for family in _families(groups):
        chosen = {key: found for key, found in groups.items() if key.family == family}
        own = any(_own_score(found) for found in chosen.values())
        rows = tuple(
            _method_row(key, EQUAL if key in costs else key.name, found, own) for key, found in chosen.items()
        )
        all_heads = heads + (("AUROC own score",) if own else ())
        tables.append(Table("Methods", family, all_heads, rows, (_PASSES, *_defects(chosen))))
    return tables


def _method_row(key: Key, name: str, results: list[Result], own: bool) -> tuple[Entry, ...]:
    passes = mean_passes(results)
    figures = [average(results, auroc(score)) for score in COMMON_SCORES]
    row: tuple[Entry, ...] = (
        f"{key.source}, {splits_text(results)}",
        key.recipe_text,
        f"{name}, {key.epochs_text}",
        None if passes is None else str(round(passes)),
        str(len(results)),
        average(results, accuracy),
        *figures,
    )
    if not own:
        return row
    score = _own_score(results)
    mean = average(results, auroc(score)) if score else None
    return (*row, f"{score} {entry_text(mean)}" if mean else None)


def _own_score(results: Sequence[Result]) -> str | None:
    """Return the method's score if it has no column of its own, else None."""
    return results[0].score if results[0].score not in COMMON_SCORES else None


def paired_tables(results: Sequence[Result]) -> list[Table]:
    """Return a table for each family: every method against softmax on the same split and seed."""
    groups = group_results(main_results(results))
    scores = ("AUROC probability", "AUROC logit", "AUROC, each by its own score")
    heads = ("data, splits", "encoder, recipe", "method, epochs", "minus", "n", "ACC", *scores)
    tables = []
    for family in _families(groups):
        rows = [
            row
            for key, found in groups.items()
            if key.family == family and key.method != "softmax"
            for row in paired_rows(key, found, groups)
        ]
        notes = (
            f"Mean of the differences within a split and seed [95 % bootstrap interval over splits]; "
            f"n: splits. Fewer than {LEAST} splits: no interval.",
        )
        if rows:
            tables.append(Table("Paired differences against softmax", family, heads, tuple(rows), notes))
    return tables


def paired_rows(key: Key, results: list[Result], groups: Groups) -> list[tuple[Entry, ...]]:
    """Return rows of a group against the softmax of as many epochs and those of the same cost.

    Only softmaxes in the ledger have a row.
    """
    rows: list[tuple[Entry, ...]] = []
    for name, others in references(key, results, groups).items():
        pairs = pair(results, others)
        figures = [
            compare(pairs, measure)
            for measure in (accuracy, auroc("probability"), auroc("logit"), auroc(None))
        ]
        if figures[0] is not None:
            where = f"{key.source}, {splits_text([one for one, _ in pairs])}"
            method = f"{key.name}, {key.epochs_text}"
            rows.append((where, key.recipe_text, method, name, str(figures[0].splits), *figures))
    return rows


def _comparison(number: int, results: Sequence[Result]) -> list[Table]:
    """Return Table 1 or 2: ACC and AUROC of methods by data set, next to the paper's."""
    sets = SMALL if number == 1 else LARGE
    groups = group_results(r for r in main_results(results) if r.cell.source in sets)
    tables = []
    # A column is a data set. In Table 2, each data set has its own family.
    families = [(f,) for f in _families(groups) or ["arpl"]] if number == 1 else [("first", "lt")]
    for some in families:
        chosen = {key: found for key, found in groups.items() if key.family in some}
        for metric in ("ACC", "AUROC"):
            rows = _comparison_rows(number, metric, sets, chosen)
            heads = ("method", "ours: method, encoder, recipe, epochs; score", *sets)
            title = f"Table {number}, {'closed-set ' if metric == 'ACC' else ''}{metric}"
            notes = (_BESIDE, *(_defects(chosen) if metric == "AUROC" else ()))
            tables.append(Table(title, ", ".join(some), heads, rows, notes, number))
    return tables


def _comparison_rows(
    number: int, metric: str, sets: tuple[str, ...], groups: Groups
) -> tuple[tuple[Entry, ...], ...]:
    printed = method_tables()[number]
    ours: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for key, found in groups.items():
        score = "" if metric == "ACC" else f"; {_paper_score(found)}"
        variant = f"{key.name}, {key.recipe_text}, {key.epochs_text}{score}"
        ours.setdefault((paper_row(number, key), variant), {})[key.source] = found
    rows: list[tuple[Entry, ...]] = []
    for row in [*printed, *sorted({row for row, _ in ours if row not in printed})]:
        variants = sorted(variant for name, variant in ours if name == row) or [""]
        run = {name for variant in variants for name in ours.get((row, variant), {})}
        for variant in variants:
            figures = []
            for name in sets:
                found = ours.get((row, variant), {}).get(name, [])
                paper = printed.get(row, {}).get((metric, name))
                # The paper's figure stands next to each of ours, or once if there is none of ours.
                shown = bool(found) or (name not in run and variant == variants[0])
                figures.append(_beside(found, metric, paper if shown else None))
            rows.append((row, variant, *figures))
    return tuple(rows)


def _beside(results: Sequence[Result], metric: str, printed: Printed | None) -> Beside:
    if not results:
        return Beside(None, printed)
    measure = accuracy if metric == "ACC" else auroc(_paper_score(results))
    return Beside(average(results, measure), printed)


def _parameters() -> Table:
    """Return the rest of Table 2. It is not measured here and contains the paper's figures only."""
    rows = tuple(
        (row, *(f"paper {text}" if text else None for text in listed))
        for row, listed in ADDITIONAL_PARAMETERS.items()
    )
    return Table("Table 2, parameters next to the backbone", "first, lt", ("method", *LARGE), rows, (), 2)


def _paper_score(results: Sequence[Result]) -> str:
    """Return the score that the paper rejects by; if the paper names none, the method's own."""
    return SCORES.get(results[0].cell.method, results[0].score)


def paper_row(number: int, key: Key) -> str:
    """Return the row of Table 1 or 2 that a group belongs to, or a name for a new row.

    Args:
        number: 1 or 2.
        key: what the results of the group have in common.
    """
    if number == 2:
        return LARGE_ROWS.get(key.method, key.method)
    either = METHOD_ROWS.get((key.method, None)) or METHOD_ROWS.get((key.method, key.encoder))
    return either or f"{key.method}, {key.encoder}"


def _families(groups: Groups) -> list[str]:
    return sorted({key.family for key in groups})


def _defects(groups: Groups) -> tuple[str, ...]:
    """Return a note about defects of the published splits that are averaged."""
    found = set()
    for key, results in groups.items():
        if key.source in list_sets() and key.family in list_families(key.source):
            used = {result.cell.split for result in results}
            defects = split_defects(key.source, key.family)
            found |= {f"{text} (family {key.family})" for text in defects if _matters(text, used)}
    return (f"Published splits: {'; '.join(sorted(found))}.",) if found else ()


def _matters(defect: str, used: set[int]) -> bool:
    """Return whether a defect concerns the splits used; one of two equal splits, only if both are used."""
    named = re.search(r" splits? ([\d, and]+) ha", defect)
    concerned = used.intersection(map(int, re.findall(r"\d+", named[1]))) if named else used
    return len(concerned) > ("the same" in defect)
