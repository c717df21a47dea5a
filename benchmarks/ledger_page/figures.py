"""Figures of the ledger's page as data: dots with whiskers, curves over hyper-parameters.

Everything is in percent, as in the tables. A dot is [value, low, high]; without an interval, low and high are
None.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pmal.benchmark.ablations import Sweep
from pmal.benchmark.ledger import Result
from pmal.benchmark.rendering import Entry, Table
from pmal.benchmark.tables.ablation_tables import Found
from pmal.benchmark.tables.groups import Key, Measure, accuracy, auroc, average, splits_text
from pmal.benchmark.tables.paper import ABLATION_DATA, SCORES, sweep_figures
from pmal.benchmark.tables.statistics import Difference, Mean

Dot = list[float | None] | None

OWN = f"AUROC {SCORES['pmal']}"
"""What the paper rejects by, first."""
MEASURES: Mapping[str, Measure] = {
    OWN: auroc(SCORES["pmal"]),
    "AUROC probability": auroc("probability"),
    "AUROC logit": auroc("logit"),
    "ACC": accuracy,
}
PAPER = {"AUROC": "paper, AUROC", "ACC": "paper, ACC"}
MEANING = {
    "T": "prototypes per class",
    "epsilon": "least share of the best quality",
    "U": "classifiers",
    "margin": "in the prototype loss",
    "lambda": "weight of the prototype loss",
}


def paired_figure(table: Table) -> dict[str, Any]:
    """Of a table of paired differences: a row for each comparison, a dot for each measure."""
    first = table.heads.index("n") + 1
    groups = []
    for (where, recipe), rows in itertools.groupby(table.rows, key=lambda row: (row[0], row[1])):
        lines = []
        for _, _, method, minus, n, *figures in rows:
            splits = "1 split" if n == "1" else f"{n} splits"
            dots = [_dot(figure) for figure in figures]
            lines.append({"name": str(method), "note": f"minus {minus}; {splits}", "dots": dots})
        groups.append({"title": str(where), "note": str(recipe), "rows": lines})
    series = [{"name": head, "lane": i, "color": i} for i, head in enumerate(table.heads[first:])]
    return {"x": "percentage points", "zero": True, "signed": True, "series": series, "groups": groups}


def curves_figure(sweeps: Iterable[tuple[Sweep, Found]], base: Key) -> dict[str, Any]:
    """A panel for each hyper-parameter, a line for each measure; the paper's, where it has any, dashed."""
    names = [*MEASURES, PAPER["AUROC"]]
    panels = [_curves(sweep, found, base) for sweep, found in sweeps]
    shown = [name for name in names if any(_has_points(panel, name) for panel in panels)]
    for panel in panels:
        panel["series"] = [series for series in panel["series"] if series["name"] in shown]
    return {"panels": panels, "shared": True}


def variants_figure(sweep: Sweep, found: Found, base: Key) -> dict[str, Any]:
    """A row for each variant of Table 3 or 4, with the paper's figures as rings beside ours."""
    printed = _printed(sweep, base)
    rows = []
    for variant in sweep.variants:
        results, beside = found.get(variant.label, []), printed.get(variant.label, (None, None))
        dots = [_dot(average(results, measure)) for measure in MEASURES.values()]
        dots += [None if value is None else [value, None, None] for value in reversed(beside)]
        note = f"splits {splits_text(results)}" if results else "not run"
        rows.append({"name": variant.label, "note": note, "dots": dots})
    series = [{"name": name, "lane": i, "color": i} for i, name in enumerate(MEASURES)]
    # In the lane of what they stand beside.
    places = {PAPER["AUROC"]: 0, PAPER["ACC"]: len(MEASURES) - 1}
    series += [{"name": name, "lane": i, "color": i, "ring": True} for name, i in places.items()]
    return _without_empty({"x": "percent", "series": series, "groups": [{"rows": rows}]})


def minings_figures(results: Sequence[Result]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of repeated minings: the share of equal prototypes, and how far apart they lie."""
    shares, distances = [], []
    for result in results:
        cell, record = result.cell, result.record
        recipe = ", ".join([cell.encoder, cell.recipe, f"{cell.epochs} epochs"])
        row = {"name": f"{cell.source}, split {splits_text([result])}", "note": recipe}
        shares.append(row | {"dots": [[100 * record["share_equal"], None, None]]})
        apart = [[record[name], None, None] for name in ("distance_to_nearest", "distance_by_chance")]
        distances.append(row | {"dots": apart})
    share = {"name": "equal prototypes", "lane": 0, "color": 0}
    names = ("to the nearest of another mining", "the same of random images of the class")
    series = [{"name": name, "lane": i, "color": 3 * i} for i, name in enumerate(names)]
    axis = "one minus the cosine, first classifier"
    return (
        {"x": "percent", "from": 0, "to": 100, "series": [share], "groups": [{"rows": shares}]},
        {"x": axis, "from": 0, "series": series, "groups": [{"rows": distances}]},
    )


def _curves(sweep: Sweep, found: Found, base: Key) -> dict[str, Any]:
    values = [float(variant.label) for variant in sweep.variants]
    series = []
    for i, (name, measure) in enumerate(MEASURES.items()):
        means = [average(found.get(variant.label, []), measure) for variant in sweep.variants]
        y, low, high = ([dot and dot[part] for dot in map(_dot, means)] for part in range(3))
        series.append({"name": name, "x": values, "y": y, "low": low, "high": high, "color": i})
    printed = _printed(sweep, base)
    paper = [printed.get(variant.label, (None, None))[1] for variant in sweep.variants]
    series.append({"name": PAPER["AUROC"], "x": values, "y": paper, "color": 0, "dash": True})
    return {
        "title": sweep.name,
        "note": MEANING[sweep.name],
        "x": sweep.name,
        "y": "percent",
        "ticks": values,
        "series": series,
    }


def _printed(sweep: Sweep, base: Key) -> dict[str, tuple[float | None, float]]:
    return sweep_figures(sweep.name) if base.source == ABLATION_DATA else {}


def _has_points(panel: Mapping[str, Any], name: str) -> bool:
    return any(y is not None for s in panel["series"] if s["name"] == name for y in s["y"])


def _without_empty(figure: dict[str, Any]) -> dict[str, Any]:
    """Without the series that no row has a dot of."""
    rows = [row for group in figure["groups"] for row in group["rows"]]
    kept = [i for i in range(len(figure["series"])) if any(row["dots"][i] for row in rows)]
    for row in rows:
        row["dots"] = [row["dots"][i] for i in kept]
    return figure | {"series": [figure["series"][i] for i in kept]}


def _dot(figure: Entry) -> Dot:
    if isinstance(figure, Difference):
        return [_round(figure.value), _round(figure.low), _round(figure.high)]
    if not isinstance(figure, Mean):
        return None
    spread = figure.deviation
    if spread is None:
        return [_round(figure.value), None, None]
    return [_round(figure.value), _round(figure.value - spread), _round(figure.value + spread)]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
