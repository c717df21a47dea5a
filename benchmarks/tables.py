"""Markdown tables of README and docs, from benchmarks/results/. A test holds the two together.

python -m benchmarks.tables            # print them
python -m benchmarks.tables --write    # put them into README.md and docs/*.md, between their marks
"""

import functools
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.cost_front import COST_TABLES
from benchmarks.discovery_tables import DISCOVERY_TABLES
from benchmarks.far_tables import FAR_TABLES
from benchmarks.hardening_tables import HARDENING_TABLES
from benchmarks.library_tables import LIBRARY_TABLES
from benchmarks.long_tail_tables import LONG_TAIL_TABLES, is_long_tailed
from benchmarks.other_data import OTHER_DATA_TABLES
from benchmarks.photo_tables import PHOTO_TABLES
from benchmarks.rule_choice import RULE_TABLES
from benchmarks.search_tables import SEARCH_TABLES
from benchmarks.speed_tables import SPEED_TABLES, hardware_name, rounded
from pmal._runtime.files import read_json, write_text
from pmal.benchmark.cells.cell import ENSEMBLE, FIT
from pmal.benchmark.ledger import Ledger, Result
from pmal.benchmark.rendering import entry_text, render
from pmal.benchmark.tables.groups import (
    Groups,
    Key,
    auroc,
    average,
    compare,
    group_results,
    main_results,
    mean_passes,
    pair,
    splits_text,
)
from pmal.benchmark.tables.method_tables import methods_tables, paired_tables, paper_row, paper_tables
from pmal.benchmark.tables.paper import SCORES as SCORE_OF_PAPER
from pmal.benchmark.tables.paper import method_tables
from pmal.benchmark.tables.references import equal_ensembles, long_softmax, softmax_results
from pmal.config import own_recipe
from pmal.methods import METHODS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SETS = ("mnist", "svhn", "cifar10", "cifar+10", "cifar+50", "tinyimagenet")
"""Image sets of the paper that are at hand, in its order."""
CIFAR10 = ("cifar10", "arpl", "oscri", "strong", 100)
"""Where every method has run: set, family, encoder, recipe, epochs."""
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def benchmark_table(chosen: str) -> str:
    """What `pmal benchmark table` prints, as Markdown: methods, paired, or tables of the paper."""
    results, _ = Ledger(RESULTS).results(FIT, ENSEMBLE)
    if chosen in ("methods", "paired"):
        return render({"methods": methods_tables, "paired": paired_tables}[chosen](results), "markdown")
    tables, _ = paper_tables(Ledger(RESULTS))
    wanted = int(chosen) if chosen.isdecimal() else None
    return render([table for table in tables if table.number == wanted], "markdown")


def pmal_table() -> str:
    """PMAL, a row for each image set of the paper, and its differences to softmaxes.

    The group with the most splits counts, of several the costliest, and of these the one with the fewest
    settings of its own, which has the defaults. The softmax is the one of equal cost, or that of twice the
    epochs where there is no other.
    """
    results, _ = Ledger(RESULTS).results(FIT, ENSEMBLE)
    groups = group_results(main_results(results))
    whole = {key: found for key, found in groups.items() if not is_long_tailed(key)}
    mined = {key: found for key, found in whole.items() if key.method == "pmal" and key.source in SETS}
    chosen = {}
    for key, found in sorted(mined.items(), key=_preference):
        if long_softmax(key, found, groups) is not None:
            chosen[key.source] = key, found
    heads = ("data, splits", "PMAL, epochs", "passes", "AUROC", "by logit", "softmax, epochs", "passes")
    heads += ("AUROC by logit", "PMAL minus softmax", "PMAL minus ensemble")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [_pmal_row(*chosen[source], groups) for source in SETS if source in chosen]
    return "\n".join(lines)


def _preference(item: tuple[Key, list[Result]]) -> tuple[int, float, int]:
    key, found = item
    return len({result.cell.split for result in found}), mean_passes(found) or 0.0, -len(key.shown_settings)


def _pmal_row(key: Key, found: list[Result], groups: Groups) -> str:
    _, softmax = long_softmax(key, found, groups)
    pairs = pair(found, softmax_results(softmax, groups))
    ours, theirs = (list(same) for same in zip(*pairs, strict=True))
    together = [pair(found, groups[other]) for other in equal_ensembles(key, found, groups)]
    settings = ", ".join([key.epochs_text, *key.shown_settings])
    score = ours[0].score
    cells = (
        f"{key.source}, {key.family} {splits_text(ours)}",
        settings,
        f"{mean_passes(ours):.0f}",
        f"{entry_text(average(ours, auroc(score)))} ({score})",
        entry_text(average(ours, auroc("logit"))),
        str(softmax.epochs),
        f"{mean_passes(theirs):.0f}",
        entry_text(average(theirs, auroc("logit"))),
        entry_text(compare(pairs, auroc(None))),
        entry_text(compare(together[0], auroc(None))) if together else "",
    )
    return f"| {' | '.join(cells)} |"


def baselines_table() -> str:
    """Every method on CIFAR-10 by its own score, beside what the paper prints for it."""
    printed = method_tables()[1]
    lines = [
        "| method, epochs | recipe | by | AUROC, arpl 0 | all splits | the same by logit | published |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, same in _on_cifar10():
        score = SCORE_OF_PAPER.get(key.method, same[0].score)
        first = [result for result in same if result.cell.split == 0]
        means = (average(first, auroc(score)), average(same, auroc(score)), average(same, auroc("logit")))
        published = printed.get(paper_row(1, key), {}).get(("AUROC", key.source))
        value = published.value if published else ""
        name = ", ".join([key.method, *key.shown_settings, key.epochs_text])
        lines.append(f"| {name} | {key.recipe} | {score} | {' | '.join(map(entry_text, means))} | {value} |")
    return "\n".join(lines)


def cgdl_table() -> str:
    """Its two rejections on CIFAR-10, apart and together."""
    scores = ("latent", "reconstruction", "cgdl", "probability", "logit")
    lines = [f"| CIFAR-10, arpl | AUROC {' | AUROC '.join(scores)} |", f"|{'---|' * (1 + len(scores))}"]
    for key, same in _on_cifar10():
        if key.method == "cgdl":
            figures = " | ".join(entry_text(average(same, auroc(score))) for score in scores)
            lines.append(f"| {splits_text(same)} | {figures} |")
    return "\n".join(lines)


def _on_cifar10() -> list[tuple[Key, list[Result]]]:
    """What every method has run, the splits 0, 2 and 4; and with its own recipe, 0 to 2."""
    results, _ = Ledger(RESULTS).results()
    found = []
    for key, group in group_results(main_results(results)).items():
        own = (key.source, key.family) == CIFAR10[:2] and key.recipe == _own_recipe(key)
        splits = (0, 1, 2) if own else (0, 2, 4)
        same = [result for result in group if result.cell.split in splits]
        if same and (own or (key.source, key.family, key.encoder, key.recipe, key.epochs) == CIFAR10):
            found.append((key, same))
    return found


def _own_recipe(key: Key) -> str:
    return own_recipe(key.method, key.source) if key.method in METHODS else ""


def quality_table() -> str:
    """How well each rule finds damaged images."""
    results = [read_json(file) for file in sorted((RESULTS / "quality").glob("*.json"))]
    kinds = ["all", *results[0]["damaged"]["kinds"]]
    lines = [
        f"| recipe, epochs | rule | {' | '.join(kinds)} | accuracy by fifth |",
        f"|{'---|' * (len(kinds) + 3)}",
    ]
    for result in results:
        for rule, row in result["rules"].items():
            found = " | ".join(f"{100 * row['auroc'][kind]:.1f}" for kind in kinds)
            fifths = " ".join(f"{100 * value:.1f}" for value in row["accuracy_by_fifth"])
            setting = f"{result['recipe']}, {result['about']['epochs']}"
            lines.append(f"| {setting} | `{rule}` | {found} | {fifths} |")
    return "\n".join(lines)


def mining_table() -> str:
    """Pairs per second of the topology distance."""
    lines = [
        "| hardware | N | K | method | seconds | Gpairs/s | TFLOP/s | error of x | times torch.cdist |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted((RESULTS / "mining").glob("*.json")):
        result = read_json(file)
        name = hardware_name(result)
        for row in result["rows"]:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}"
            lines.append(
                f"| {name} | {row['n']:,} | {row['k']} | {row['method']} | {row['seconds']:.3f} "
                f"| {row['gpairs_per_second']:.2f} | {row['tflops']:.2f} | {row['error']:.0e} | {ratio} |"
            )
    return "\n".join(lines)


def prototypes_table() -> str:
    """The distance with more prototypes at inference than in training."""
    groups = defaultdict(list)
    for file in sorted((RESULTS / "prototypes").glob("*.json")):
        result = read_json(file)
        for row in result["rows"]:
            groups[result["about"]["source"], row["per_class"]].append(row)
    kinds = ("point-to-set", "nearest", "neighbors")
    lines = [
        f"| data, runs | prototypes per class | AUROC {' | AUROC '.join(kinds)} |",
        "|---|---|---|---|---|",
    ]
    for (source, count), rows in sorted(groups.items()):
        means = " | ".join(f"{100 * statistics.mean(row[kind] for row in rows):.1f}" for kind in kinds)
        lines.append(f"| {source}, {len(rows)} | {count} | {means} |")
    return "\n".join(lines)


def precomputed_table() -> str:
    """The estimator on vectors."""
    result = read_json(RESULTS / "precomputed" / "cpu.json")
    problems = list(result["rows"])
    head = " | ".join(f"{name}: ACC | AUROC" for name in problems)
    lines = [f"| | {head} |", f"|{'---|' * (1 + 2 * len(problems))}"]
    for label, method, score in (
        ("logistic regression, largest logit", "logistic_regression", "logit"),
        ("neighbors, as they are", "neighbors", "neighbors"),
        ('`method="softmax"`, logit', "softmax", "logit"),
        ('`method="pmal"`, distance', "pmal", "distance"),
        ('`method="pmal"`, `reject_by="neighbors"`', "pmal", "neighbors"),
        ('`method="pmal"`, `reject_by="combined"`', "pmal", "combined"),
    ):
        cells = []
        for name in problems:
            found = result["rows"][name][method]
            cells += [f"{100 * found[key]:.1f}" if key in found else "" for key in ("accuracy", score)]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def new_class_table() -> str:
    """What a class added without training finds, and takes from the others."""
    result = read_json(RESULTS / "precomputed" / "cpu.json")
    problems = list(result["rows"])
    lines = [f"| | {' | '.join(problems)} |", f"|{'---|' * (1 + len(problems))}"]
    for key, label in (
        ("found", "of the new class's test samples, found"),
        ("of known", "of the known classes' test samples, taken by it"),
        ("of unknown", "of three unknown classes' test samples, taken by it"),
    ):
        cells = [f"{100 * result['rows'][name]['new_class'][key]:.1f}" for name in problems]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def export_table() -> str:
    """An exported file beside PyTorch, by the score that it rejects by."""
    result = read_json(RESULTS / "export" / "cpu.json")
    size = result["about"]["model"]["batch"]
    lines = [
        f"| score | one image: PyTorch / ONNX | images/s in batches of {size}: PyTorch / ONNX |",
        "|---|---|---|",
    ]
    for row in result["rows"]:
        one = " / ".join(f"{row['one_image'][kind]['ms']:.2f}" for kind in ("pytorch", "onnx"))
        many = " / ".join(f"{row['batch'][kind]['images_per_s']:,.0f}" for kind in ("pytorch", "onnx"))
        lines.append(f"| {row['score']} | {one} ms | {many} |")
    return "\n".join(lines)


def service_table() -> str:
    """Requests of one image, with micro-batches and without. Per processor second: of the server alone."""
    lines = ["| | requests/s | per processor second | median ms | p99 ms |", "|---|---|---|---|---|"]
    result = read_json(RESULTS / "service" / "cpu.json")
    for name, row in result["rates"].items():
        figures = (row["requests_per_s"], row["requests_per_processor_s"], row["median_ms"], row["p99_ms"])
        lines.append(f"| {name}, {row['clients']} clients | {' | '.join(map(rounded, figures))} |")
    load = result["load"]
    rate, median, tail = map(rounded, (load["requests"] / load["seconds"], load["median_ms"], load["p99_ms"]))
    lines.append(f"| good and bad mixed, {load['clients']} clients | {rate} | | {median} | {tail} |")
    memory = f"{load['memory_mb'][0]:.0f} MB at the beginning, {load['memory_mb'][-1]:.0f} MB at the end"
    compared = f"{load['good_images']:,} answers compared, {load['wrong']} wrong; {memory}."
    return "\n".join([*lines, "", f"In {load['seconds']:.0f} s with {load['clients']} clients: {compared}"])


TABLES = {
    **{name: functools.partial(benchmark_table, name) for name in ("methods", "paired")},
    **{f"paper {name}": functools.partial(benchmark_table, name) for name in (*"12345", "text")},
    "pmal": pmal_table,
    "baselines": baselines_table,
    "cgdl": cgdl_table,
    "quality": quality_table,
    "mining": mining_table,
    **SEARCH_TABLES,
    **FAR_TABLES,
    **OTHER_DATA_TABLES,
    **PHOTO_TABLES,
    **LIBRARY_TABLES,
    **DISCOVERY_TABLES,
    **COST_TABLES,
    **RULE_TABLES,
    **LONG_TAIL_TABLES,
    "prototypes": prototypes_table,
    "precomputed": precomputed_table,
    "new class": new_class_table,
    **SPEED_TABLES,
    **HARDENING_TABLES,
    "export": export_table,
    "service": service_table,
}


def with_tables(text: str) -> str:
    """The document with the tables between its marks made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name} -->", "<!-- end of table -->"
        pattern = re.escape(begin) + r".*?" + re.escape(end)
        text = re.sub(pattern, lambda _, b=begin, t=table, e=end: f"{b}\n{t()}\n{e}", text, flags=re.S)
    return text


if __name__ == "__main__":
    if "--write" in sys.argv:
        for document in DOCUMENTS:
            write_text(document, with_tables(document.read_text()))
    else:
        print("\n\n".join(f"{name}\n\n{table()}" for name, table in TABLES.items()))
