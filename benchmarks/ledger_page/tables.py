"""The ledger's tables as blocks of a page, and what is missing from them in words."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pmal.benchmark.ablations import Sweep
from pmal.benchmark.ledger import Result
from pmal.benchmark.rendering import Beside, Entry, Table, entry_text
from pmal.benchmark.tables.ablation_tables import Found
from pmal.benchmark.tables.groups import Groups, Key, splits_text
from pmal.benchmark.tables.method_tables import paired_rows
from pmal.benchmark.tables.references import EQUAL, equal_cost
from pmal.benchmark.tables.statistics import Difference, Mean
from pmal.reporting.page import document as report_page
from pmal.reporting.page.document import Cell

_HEADING = "encoder, recipe"
"""The column that becomes the heading of its rows: it is long, and most rows share it with the one before."""


_NAMED = 3
"""Rows that lack the same are counted if there are more."""


def table_block(table: Table) -> report_page.Table:
    """With the family in its title, and without columns that have nothing in them."""
    column = table.heads.index(_HEADING) if _HEADING in table.heads else None
    filled = [i for i in range(len(table.heads)) if any(row[i] is not None for row in table.rows)]
    kept, numbers = [i for i in filled if i != column], _numbers(table)
    rows: list[list[Cell]] = []
    last: Entry = None
    for row in table.rows:
        if column is not None and row[column] != last:
            last = row[column]
            rows.append([Cell(entry_text(last))])
        rows.append([_cell(row[i], i == 0, i in numbers) for i in kept])
    head = [Cell(table.heads[i], number=i in numbers) for i in kept]
    note = " ".join(table.notes)
    return report_page.Table(table.caption, head, rows, note, style="ledger", title=table.caption)


def missing_splits(groups: Groups) -> str:
    """Splits that some rows have and others of the same data and family lack."""
    splits: dict[tuple[str, str], set[int]] = defaultdict(set)
    for key, results in groups.items():
        splits[key.family, key.source] |= {result.cell.split for result in results}
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, results in groups.items():
        lacking = splits[key.family, key.source] - {result.cell.split for result in results}
        if lacking:
            rows[key.source, ", ".join(map(str, sorted(lacking)))].append(_named(key))
    lines = [
        f"{'; '.join(names) if len(names) <= _NAMED else f'{source}, {len(names)} rows'}: {which}"
        for (source, which), names in rows.items()
    ]
    return f"Splits that other rows of the same data have: {'; '.join(lines)}." if lines else ""


def missing_references(groups: Groups) -> str:
    """Methods that lack a softmax to be compared with."""
    none, equal = [], []
    for key, results in groups.items():
        if key.method != "softmax":
            found = [str(row[3]) for row in paired_rows(key, results, groups)]
            cost = equal_cost(key, results)
            none += [] if f"softmax, {key.epochs}" in found else [_named(key)]
            equal += [] if cost is None or f"{EQUAL}, {cost.epochs}" in found else [_named(key)]
    text = [f"No softmax of the same epochs, split and seed: {'; '.join(none)}."] if none else []
    text += [f"No {EQUAL}: {'; '.join(equal)}."] if equal else []
    return " ".join(text)


def comparable(found: Found) -> Found:
    """The results of splits and seeds that all variants have; all results, where there is no such split.

    A grid that is half done has more splits of some variants, and splits differ more than variants do.
    """
    common = set.intersection(*(_places(results) for results in found.values()))
    if not common:
        return found
    return {label: [r for r in results if _place(r) in common] for label, results in found.items()}


def missing_variants(sweeps: Sequence[Sweep], found: Mapping[str, Found], numeric: bool) -> str:
    """What has not been run of these sweeps on one base, and where the splits differ. found: by name."""
    absent: list[str] = []
    uneven: dict[str, list[str]] = {}
    for sweep in sweeps:
        variants = found.get(sweep.name, {})
        labels = [variant.label for variant in sweep.variants if variant.label not in variants]
        if not variants:
            absent.append(f"{sweep.name}, of which two values at least are needed")
        elif labels:
            absent.append(f"{sweep.name} = {', '.join(labels)}" if numeric else "; ".join(labels))
        if variants and len({frozenset(_places(results)) for results in variants.values()}) > 1:
            uneven.setdefault(_drawn(variants), []).append(sweep.name)
    text = [f"Not run: {'; '.join(absent)}."] if absent else []
    return " ".join([*text, *(f"{', '.join(names)}: {words}." for words, names in uneven.items())])


def _drawn(variants: Found) -> str:
    kept = comparable(variants)
    if kept is variants:
        return "no split and seed that all have, so the values do not compare"
    return f"drawn from what all have, splits {splits_text(next(iter(kept.values())))}; some have more"


def _places(results: Sequence[Result]) -> set[tuple[int, int]]:
    return {_place(result) for result in results}


def _place(result: Result) -> tuple[int, int]:
    return result.cell.split, result.cell.seed


def _named(key: Key) -> str:
    settings = f" ({', '.join(key.shown_settings)})" if key.shown_settings else ""
    return f"{key.source}, {key.name} {key.epochs_text}{settings}"


def _numbers(table: Table) -> set[int]:
    kinds = (Mean, Difference)
    found = {i for row in table.rows for i, entry in enumerate(row) if isinstance(entry, kinds)}
    return found | {i for i, head in enumerate(table.heads) if head in ("n", "passes")}


def _cell(entry: Entry, first: bool, number: bool) -> Cell:
    text = entry_text(entry)
    if isinstance(entry, (Mean, Difference)) or (isinstance(entry, Beside) and entry.ours is not None):
        value, _, rest = text.partition(" ")
        return Cell(value, rest, number=number)
    return Cell(text or "·", mark="group" if first else "", number=number)
