"""Tables 3 to 5 of the paper, its lambda, and the fluctuation of prototypes, from the ledger."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from pmal.benchmark.ablations import GRIDS, Sweep, Variant
from pmal.benchmark.cells.cell import plain_settings
from pmal.benchmark.ledger import Result
from pmal.benchmark.rendering import Beside, Entry, Table
from pmal.benchmark.tables.groups import Groups, Key, accuracy, auroc, average, group_results, splits_text
from pmal.benchmark.tables.paper import ABLATION_DATA, SCORES, Printed, sweep_figures
from pmal.config import list_recipes

_NUMBERS = {"table3": 3, "table4": 4, "table5": 5, "lambda": None}
_NOTE = "Ours (n: cells); the paper's figure, of a wide ResNet on splits of its own, and the difference."
Found = dict[str, list[Result]]


def ablation_tables(results: Sequence[Result]) -> list[Table]:
    """Return a table for every sweep and every base that it was run on.

    A sweep that was not run has a table of the paper's figures alone.
    """
    groups = group_results(result for result in results if result.cell.method == "pmal")
    tables = []
    for grid, number in _NUMBERS.items():
        for sweep in GRIDS[grid]:
            found = [_table(number, sweep, base, variants) for base, variants in sweep_bases(sweep, groups)]
            tables += found or [_table(number, sweep, None, {})]
    return tables


def sweep_bases(sweep: Sweep, groups: Groups) -> Iterator[tuple[Key, Found]]:
    """Yield what results have in common that differ in the settings of a sweep only, and the results.

    A single variant is no comparison and is left out.
    """
    bases: dict[Key, Found] = {}
    for key, results in groups.items():
        rest = tuple(s for s in key.settings if s.partition("=")[0] not in sweep.fields)
        varied = tuple(s for s in key.settings if s.partition("=")[0] in sweep.fields)
        base = dataclasses.replace(key, settings=rest)
        for variant in sweep.variants:
            if _plain(key.recipe, variant) == varied:
                bases.setdefault(base, {})[variant.label] = results
    for base, variants in bases.items():
        if len(variants) > 1:
            yield base, variants


@functools.lru_cache(maxsize=1024)
def _plain(recipe: str, variant: Variant) -> tuple[str, ...]:
    # The file of a user's recipe may be deleted; its defaults mostly equal those of the shipped recipes.
    return plain_settings(recipe if recipe in list_recipes() else "strong", variant.settings)


def _table(number: int | None, sweep: Sweep, base: Key | None, found: Found) -> Table:
    printed = sweep_figures(sweep.name) if base is None or base.source == ABLATION_DATA else {}
    score = SCORES["pmal"]
    rows: list[tuple[Entry, ...]] = []
    for variant in sweep.variants:
        results = found.get(variant.label, [])
        acc, value = printed.get(variant.label, (None, None))
        rows.append(
            (
                variant.label,
                splits_text(results) if results else "",
                Beside(average(results, accuracy), None if acc is None else Printed(acc)),
                Beside(average(results, auroc(score)), None if value is None else Printed(value)),
                average(results, auroc("probability")),
                average(results, auroc("logit")),
            )
        )
    title = f"Table {number}" if number else "In the text"
    title += f", {sweep.name}"
    title += f", {base.source}: {base.recipe_text}, {base.epochs_text} epochs" if base else ""
    heads = (sweep.name, "splits", "ACC", f"AUROC {score}", "AUROC probability", "AUROC logit")
    return Table(
        title, base.family if base else "none, nothing was run", heads, tuple(rows), (_NOTE,), number
    )


def fluctuation_table(results: Sequence[Result]) -> list[Table]:
    """Return a table for each family, with one row per cell."""
    distances = ("distance to the nearest of another mining", "the same of random images of the class")
    heads = ("data, split; seed", "encoder, recipe", "epochs", "minings", "equal prototypes", *distances)
    tables = []
    for family in sorted({result.cell.family for result in results}):
        rows = tuple(_fluctuation_row(result) for result in results if result.cell.family == family)
        note = "Means over classes and pairs of minings; distance: one minus the cosine, first classifier."
        tables.append(Table("Fluctuation of prototypes", family, heads, rows, (note,)))
    return tables


def _fluctuation_row(result: Result) -> tuple[Entry, ...]:
    cell, record = result.cell, result.record
    return (
        f"{cell.source}, {splits_text([result])}",
        ", ".join([cell.encoder, cell.recipe, *cell.settings]),
        str(cell.epochs),
        str(record["minings"]),
        f"{100 * record['share_equal']:.1f} %",
        f"{record['distance_to_nearest']:.3f}",
        f"{record['distance_by_chance']:.3f}",
    )
