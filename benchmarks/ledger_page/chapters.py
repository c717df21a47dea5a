"""The report of a ledger: its tables and figures as sections of one page. What was not run, it says."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost_front import comparisons, front_panels
from benchmarks.ledger_page.figures import curves_figure, minings_figures, paired_figure, variants_figure
from benchmarks.ledger_page.tables import (
    comparable,
    missing_references,
    missing_splits,
    missing_variants,
    table_block,
)
from pmal.benchmark.ablations import GRIDS, Sweep
from pmal.benchmark.cells.cell import ENSEMBLE, FIT, FLUCTUATION
from pmal.benchmark.ledger import Ledger, Result
from pmal.benchmark.rendering import Beside, Table
from pmal.benchmark.tables.ablation_tables import Found, ablation_tables, fluctuation_table, sweep_bases
from pmal.benchmark.tables.groups import Key, group_results, key_of, main_results
from pmal.benchmark.tables.method_tables import methods_tables, paired_tables, paper_tables
from pmal.benchmark.tables.statistics import LEAST
from pmal.errors import DataError
from pmal.reporting.page.document import Block, Details, Facts, Figure, Page, Section, Stat

Bases = dict[Key, dict[str, Found]]
"""Results of sweeps that have the same base, by the name of the sweep."""

_CURVES = (*GRIDS["table5"], *GRIDS["lambda"])
_SPREAD = "the deviation over splits, or over the seeds of a single one."
_PAPER = "the paper's figures, of a wide ResNet on splits of its own."


def ledger_page(folder: Path, say: Callable[[str], None]) -> Page:
    """All chapters that the ledger has cells for. A file that cannot be read is told of, and left out."""
    ledger = Ledger(folder)
    (results, broken), (minings, worse) = ledger.results(FIT, ENSEMBLE), ledger.results(FLUCTUATION)
    broken += worse
    if not results and not minings:
        nothing = f"{folder}: no ledger with cells: name one that `pmal benchmark` left"
        raise DataError(broken[0] if broken else nothing)
    for line in broken:
        say(f"warning: {line}")
    sections = [
        _methods_section(results, paper_tables(ledger)[0]),
        _paired_section(results),
        _cost_section(results),
        _curves_section(results),
        _variants_section(results),
        _minings_section(minings),
        _making_section([*results, *minings], len(broken)),
    ]
    return _page([*results, *minings], [section for section in sections if section])


def _page(results: Sequence[Result], sections: Sequence[Section]) -> Page:
    methods, sets, families = (
        sorted({str(getattr(key, name)) for key in map(key_of, results)})
        for name in ("name", "source", "family")
    )
    places = {(r.cell.source, r.cell.family, r.cell.split) for r in results}
    stats = [
        Stat(f"{len(results):,}", "cells", "a method on one split with one seed"),
        Stat(str(len(methods)), "methods", _few(methods)),
        Stat(str(len(sets)), "data sets", _few(sets)),
        Stat(str(len(places)), "splits", f"families: {_few(families)}"),
    ]
    text = (
        "What methods of open-set recognition reach under the same recipe, on the same splits. Splits differ"
    )
    text += (
        " more than methods do, so every figure names its family of splits, and methods are compared within"
    )
    text += " a split and seed."
    foot = "Written by pmal. This file holds everything it shows and loads nothing."
    return Page("Benchmark", "pmal report · ledger", text, stats, sections, foot=foot)


def _methods_section(results: Sequence[Result], paper: Sequence[Table]) -> Section | None:
    tables = methods_tables(results)
    if not tables:
        return None
    lead = "Percent: mean over splits ± deviation, n cells each. Rows differ in nothing but what they name."
    missing = missing_splits(group_results(main_results(results)))
    blocks: list[Block] = [table_block(table) for table in tables]
    beside = [table_block(table) for table in paper if table.number in (1, 2) and _has_ours(table)]
    blocks += [Details("Tables 1 and 2 of the paper, with ours beside", beside)] if beside else []
    return Section("methods", "Methods", f"{lead} {missing}".strip(), blocks)


def _paired_section(results: Sequence[Result]) -> Section | None:
    tables = paired_tables(results)
    if not tables:
        return None
    lead = "Each method minus the softmax of the same split and seed: right of zero, the method is better."
    lead += " A method that trains more than once also stands against softmaxes of equal cost, in passes per"
    lead += " training image: one that trains for long, and several whose logits are averaged."
    lead = f"{lead} {missing_references(group_results(main_results(results)))}".strip()
    caption = f"Bars: 95 % bootstrap interval over splits. Hollow: fewer than {LEAST} splits, no interval."
    blocks: list[Block] = []
    for i, table in enumerate(tables):
        label = f"{table.caption}: a dot for each measure of each comparison"
        figure = paired_figure(table)
        blocks.append(Figure(f"paired-{i}", "dots", figure, label, caption, title=f"family={table.family}"))
    blocks.append(Details("The same as tables", [table_block(table) for table in tables]))
    return Section("paired", "Against softmax", lead, blocks)


def _cost_section(results: Sequence[Result]) -> Section | None:
    panels = front_panels(results)
    if not panels:
        return None
    best = [
        f"{one.source}: {'; '.join(f'{row.key.name}, {row.key.epochs_text}' for row in one.front('logit'))}"
        for one in comparisons(results)
    ]
    lead = (
        "AUROC over the cost of all trainings, on the splits that most rows have together. Dashed: the rows"
    )
    lead += " that no other beats for as many passes or fewer. Lengths of one method are joined."
    caption = f"On the front by the largest logit, with epochs, the cheapest first. {'. '.join(best)}."
    label = "AUROC over passes per training image, a line for each method"
    figure = Figure("cost-passes", "lines", {"panels": panels, "shared": False}, label, caption, title="Cost")
    return Section("cost", "What AUROC costs", lead, [figure])


def _curves_section(results: Sequence[Result]) -> Section | None:
    blocks: list[Block] = []
    for i, (base, found) in enumerate(_bases(_CURVES, results).items()):
        sweeps = [(sweep, comparable(found[sweep.name])) for sweep in _CURVES if sweep.name in found]
        caption = f"Bands: {_SPREAD} {missing_variants(_CURVES, found, numeric=True)}".strip()
        label = f"AUROC and accuracy over {', '.join(sweep.name for sweep, _ in sweeps)}"
        figure = curves_figure(sweeps, base)
        blocks.append(Figure(f"curves-{i}", "lines", figure, label, caption, title=_title(base)))
    if not blocks:
        return None
    lead = f"One setting is varied, all others stay. Dashed: {_PAPER}"
    return Section("curves", "Hyper-parameters", lead, [*blocks, _as_tables(results, _CURVES)])


def _variants_section(results: Sequence[Result]) -> Section | None:
    blocks: list[Block] = []
    absent = ""
    for number in (3, 4):
        [sweep] = GRIDS[f"table{number}"]
        bases = _bases([sweep], results)
        absent += "" if bases else f" Not run: Table {number}, {sweep.name}."
        for base, found in bases.items():
            caption = f"Bars: {_SPREAD} {missing_variants([sweep], found, numeric=False)}".strip()
            title = f"Table {number}, {sweep.name}; {_title(base)}"
            figure = variants_figure(sweep, comparable(found[sweep.name]), base)
            name = f"table{number}-{len(blocks)}"
            blocks.append(Figure(name, "dots", figure, f"{title}: AUROC and accuracy", caption, title=title))
    if not blocks:
        return None
    lead = f"What each part of the method is worth, and other rules in its place. Rings: {_PAPER}{absent}"
    sweeps = [*GRIDS["table3"], *GRIDS["table4"]]
    return Section("ablations", "Parts and rules", lead, [*blocks, _as_tables(results, sweeps)])


def _minings_section(results: Sequence[Result]) -> Section | None:
    if not results:
        return None
    blocks: list[Block] = []
    for family in sorted({result.cell.family for result in results}):
        figures = minings_figures([result for result in results if result.cell.family == family])
        words = ("share of prototypes that two minings have in common", "distance between their prototypes")
        for kind, figure, word in zip(("equal", "apart"), figures, words, strict=True):
            title = f"{word[:1].upper()}{word[1:]}; family={family}"
            blocks.append(Figure(f"minings-{kind}-{len(blocks)}", "dots", figure, title, title=title))
    lead = "The mining repeated with classifiers of other random streams. Prototypes need not be the same"
    lead += " images: what counts is that they lie nearer to each other than images drawn at random do."
    tables = [table_block(table) for table in fluctuation_table(results)]
    return Section("minings", "Repeated minings", lead, [*blocks, Details("The same as tables", tables)])


def _making_section(results: Sequence[Result], broken: int) -> Section:
    manifests = [result.record.get("manifest", {}) for result in results]
    facts = {
        "pmal": (manifest.get("pmal") for manifest in manifests),
        "revision": (_short(manifest.get("revision") or "") for manifest in manifests),
        "torch": (manifest.get("libraries", {}).get("torch") for manifest in manifests),
        "hardware": (_hardware(manifest.get("hardware", {})) for manifest in manifests),
    }
    groups = [(name, _counted(values)) for name, values in facts.items()]
    lead = "The cells by what they were computed with. Each cell's file in the ledger names the command that"
    lead += " makes it again."
    if broken:
        lead += f" {broken} file{'s' * (broken > 1)} could not be read and {'are' if broken > 1 else 'is'}"
        lead += " left out."
    return Section("making", "How it was made", lead, [Facts(groups)])


def _short(revision: str) -> str:
    """Enough of a revision to find it.

    >>> _short("0123456789abcdef0123456789abcdef01234567+changes")
    '0123456789ab+changes'
    """
    commit, plus, changes = revision.partition("+")
    return commit[:12] + plus + changes


def _bases(sweeps: Sequence[Sweep], results: Sequence[Result]) -> Bases:
    groups = group_results(result for result in results if result.cell.method == "pmal")
    bases: Bases = {}
    for sweep in sweeps:
        for base, found in sweep_bases(sweep, groups):
            bases.setdefault(base, {})[sweep.name] = found
    return bases


def _as_tables(results: Sequence[Result], sweeps: Iterable[Sweep]) -> Details:
    names = {sweep.name for sweep in sweeps}
    tables = [t for t in ablation_tables(results) if t.heads[0] in names and _has_ours(t)]
    return Details("The same as tables", [table_block(table) for table in tables])


def _has_ours(table: Table) -> bool:
    entries = (entry for row in table.rows for entry in row)
    return any(isinstance(entry, Beside) and entry.ours is not None for entry in entries)


def _title(base: Key) -> str:
    return f"{base.source}: {base.recipe_text}, {base.epochs_text} epochs; family={base.family}"


def _counted(values: Iterable[Any]) -> list[tuple[str, str]]:
    counts = Counter(str(value or "not recorded") for value in values)
    return [(value, f"{count} cell{'s' * (count > 1)}") for value, count in counts.most_common()]


def _hardware(hardware: Mapping[str, Any]) -> str:
    if hardware.get("gpu"):
        return str(hardware["gpu"])
    return f"{hardware['cpus']} CPUs, {hardware['machine']}" if "cpus" in hardware else ""


def _few(names: Sequence[str]) -> str:
    most = 6
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
