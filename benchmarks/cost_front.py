"""What AUROC costs: every method's figure against its passes per training image, and which are not beaten.

A row is on the front if no row of the same data, family and splits has a higher AUROC for as many passes or
fewer. Splits move AUROC more than methods do, so only the splits that most rows have are compared.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.long_tail_tables import is_long_tailed
from pmal.benchmark.cells.cell import ENSEMBLE, FIT
from pmal.benchmark.ledger import Ledger, Result
from pmal.benchmark.rendering import entry_text
from pmal.benchmark.tables.groups import (
    Groups,
    Key,
    auroc,
    average,
    group_results,
    main_results,
    mean_passes,
    splits_text,
)

RESULTS = Path(__file__).parent / "results"
LEAST_ROWS = 3
"""Fewer than these are no picture."""
RULES = {"each by its own score": None, "all by the largest logit": "logit"}
_GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One method in one length on the splits that are compared."""

    key: Key
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """Method, what differs from the recipe, and epochs."""
        recipe = [] if self.key.recipe in ("strong", "sample") else [f"recipe {self.key.recipe}"]
        return ", ".join([self.key.name, *recipe, *self.key.shown_settings, self.key.epochs_text])

    @property
    def passes(self) -> float:
        """Of all trainings, per training image."""
        return mean_passes(self.results) or 0.0

    def auroc(self, score: str | None) -> float | None:
        """The mean over splits in percent, by a score or by the row's own."""
        found = average(self.results, auroc(score))
        return None if found is None else found.value


@dataclass(frozen=True)
class Comparison:
    """The rows of one data set that have the same splits."""

    source: str
    family: str
    splits: tuple[int, ...]
    rows: tuple[Row, ...]

    def front(self, score: str | None) -> list[Row]:
        """The rows that no other beats by a score, the cheapest first."""
        found: list[Row] = []
        # Whole passes: a softmax of equal cost has its epochs rounded.
        for row in sorted(self.rows, key=lambda row: (round(row.passes), -(row.auroc(score) or 0.0))):
            value = row.auroc(score)
            if value is not None and (not found or value > found[-1].auroc(score)):
                found.append(row)
        return found


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """One comparison for each data set and family that has enough rows on the same splits."""
    by_data: dict[tuple[str, str], Groups] = defaultdict(dict)
    for key, found in group_results(main_results(results)).items():
        if mean_passes(found) is not None and not is_long_tailed(key):
            by_data[key.source, key.family][key] = found
    compared = [_comparison(*place, groups) for place, groups in sorted(by_data.items())]
    return [one for one in compared if len(one.rows) >= LEAST_ROWS]


def _comparison(source: str, family: str, groups: Groups) -> Comparison:
    splits = common_splits([{result.cell.split for result in found} for found in groups.values()])
    rows = [
        Row(key, tuple(result for result in found if result.cell.split in splits))
        for key, found in groups.items()
        if splits <= {result.cell.split for result in found}
    ]
    return Comparison(source, family, tuple(sorted(splits)), tuple(rows))


def common_splits(of_rows: Sequence[set[int]]) -> set[int]:
    """The splits that most rows have together: the more rows the better, then the more splits.

    >>> common_splits([{0, 2, 4}, {0, 2, 4}, {0, 1, 2, 3, 4}, {0}])
    {0, 2, 4}
    """
    candidates = {
        frozenset.intersection(*map(frozenset, pair)) for pair in itertools.product(of_rows, repeat=2)
    }
    counted = {splits: sum(splits <= row for row in of_rows) for splits in candidates if splits}
    # One row more is not worth two splits less: rows times splits, as cells of the picture.
    best = max(
        counted, key=lambda splits: (counted[splits] * len(splits), sorted(splits)), default=frozenset()
    )
    return set(best)


def front_panels(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Panels of the ledger's page: a point for each length of a method, and the front dashed."""
    return [_panel(one, rule, score) for one in comparisons(results) for rule, score in RULES.items()]


def _panel(one: Comparison, rule: str, score: str | None) -> dict[str, Any]:
    front = one.front(score)
    series = [{"name": "front", "dash": True, "color": 6, **_points(front, score)}]
    for color, (method, rows) in enumerate(by_method(one).items()):
        series.append({"name": method, "color": color, **_points(rows, score)})
    return {
        "title": f"{one.source}, {rule}",
        "note": f"{one.family} {', '.join(map(str, one.splits))}",
        "x": "passes per training image",
        "y": "AUROC, percent",
        "xLog": True,
        "series": series,
    }


def _points(rows: Sequence[Row], score: str | None) -> dict[str, list[float | None]]:
    values = [row.auroc(score) for row in rows]
    return {"x": [row.passes for row in rows], "y": [v if v is None else round(v, 3) for v in values]}


def by_method(one: Comparison) -> Mapping[str, list[Row]]:
    """Rows that differ in their length alone belong together; the cheapest first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(one.rows, key=lambda row: row.passes):
        words = [row.key.name, *([] if row.key.recipe in ("strong", "sample") else [row.key.recipe])]
        found[
            ", ".join([*words, *(s for s in row.key.shown_settings if s.startswith("method_options"))])
        ].append(row)
    return found


def cost_table() -> str:
    """Cost and AUROC of each row, the cheapest first."""
    heads = (
        "data, splits",
        "method, epochs",
        "passes",
        "seconds",
        "GPU GiB",
        "beside",
        "AUROC",
        "by logit",
        "front",
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    results, _ = Ledger(RESULTS).results(FIT, ENSEMBLE)
    for one in comparisons(results):
        fronts = {rule: one.front(score) for rule, score in RULES.items()}
        for row in sorted(one.rows, key=lambda row: row.passes):
            on = [
                word for rule, word in zip(RULES, ("own score", "logit"), strict=True) if row in fronts[rule]
            ]
            figures = [entry_text(average(row.results, auroc(score))) for score in RULES.values()]
            score = row.results[0].score
            cells = (
                f"{one.source}, {one.family} {splits_text(row.results)}",
                row.name,
                f"{row.passes:.0f}",
                *_costs(row.results),
                f"{figures[0]} ({score})",
                figures[1],
                ", ".join(on),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _costs(results: Sequence[Result]) -> tuple[str, str, str]:
    """Seconds with trainings that other cells shared, the largest memory, and how many cells ran beside."""
    seconds = [
        result.record["seconds"]
        + sum(one.get("seconds", 0.0) for one in result.record.get("shared_classifiers", {}).values())
        for result in results
        if "seconds" in result.record
    ]
    memory = [result.record["peak_gpu_bytes"] for result in results if result.record.get("peak_gpu_bytes")]
    beside = {result.record.get("beside") or 0 for result in results}
    return (
        f"{statistics.fmean(seconds):,.0f}" if seconds else "",
        f"{max(memory) / _GIB:.1f}" if memory else "",
        " to ".join(map(str, sorted({min(beside), max(beside)}))),
    )


COST_TABLES = {"cost": cost_table}
