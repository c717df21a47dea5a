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

from benchmarks.speed_tables import SPEED_TABLES, hardware_name, rounded
from pmal._runtime.files import read_json, write_text
from pmal.benchmark.cells import ENSEMBLE, FIT
from pmal.benchmark.groups import (
    Key,
    accuracy,
    auroc,
    average,
    group_results,
    main_results,
    mean_passes,
    pair,
    splits_text,
)
from pmal.benchmark.ledger import Ledger, Result
from pmal.benchmark.paper import SCORES as SCORE_OF_PAPER
from pmal.benchmark.paper import method_tables
from pmal.benchmark.references import long_softmax, softmax_results
from pmal.benchmark.rendering import entry_text, render
from pmal.benchmark.tables import COMMON_SCORES as SCORES
from pmal.benchmark.tables import methods_tables, paired_tables, paper_row, paper_tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CIFAR10 = ("cifar10", "arpl", "oscri", "strong", 100)
"""Where every method has run: set, family, encoder, recipe, epochs."""
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def benchmark_table(chosen: str) -> str:
    """What `pmal benchmark table` prints, as Markdown: methods, paired, or tables of the paper."""
    results, _ = Ledger(RESULTS).results(FIT, ENSEMBLE)
    if chosen in ("methods", "paired"):
        return render({"methods": methods_tables, "paired": paired_tables}[chosen](results), "markdown")
    tables, _ = paper_tables(Ledger(RESULTS))
    wanted = int(chosen) if chosen.isdecimal() else None
    return render([table for table in tables if table.number == wanted], "markdown")


def pmal_table() -> str:
    """PMAL and a long softmax on the same splits. The table of methods has all the rest.

    The softmax is the one of equal cost, or that of twice the epochs where there is no other.
    """
    results, _ = Ledger(RESULTS).results()
    groups = group_results(main_results(results))
    scores, families = ("probability", "logit", "distance", "neighbors"), defaultdict(list)
    for key, found in groups.items():
        variant = any(setting.startswith("encoder.") for setting in key.settings)
        long = long_softmax(key, found, groups) if key.method == "pmal" and not variant else None
        if long is None:
            continue
        pairs = pair(found, softmax_results(long[1], groups))
        for one, same in zip((key, long[1]), zip(*pairs, strict=True), strict=True):
            figures = [average(same, accuracy), *(average(same, auroc(score)) for score in scores)]
            method = ", ".join([one.method, one.epochs_text, *one.shown_settings])
            name = f"{key.source}, {splits_text(same)} | {method} | {mean_passes(same):.0f}"
            families[key.family].append(f"| {name} | {' | '.join(map(entry_text, figures))} |")
    columns = " | ".join(f"AUROC {score}" for score in scores)
    head = f"| data, splits | method, epochs | passes | ACC | {columns} |"
    rule = "|---" * head.count(" | ") + "|---|"
    tables = ("\n".join([f"family={f}", "", head, rule, *rows]) for f, rows in families.items())
    defects = methods_tables(results)[0].notes
    return "\n\n".join([*tables, *defects])


def baselines_table() -> str:
    """Every method on CIFAR-10 by its own score, beside what the paper prints for it."""
    printed = method_tables()[1]
    lines = [
        "| method, epochs | rejects by | AUROC, arpl 0 | arpl 0, 2, 4 | the same by logit | published |",
        "|---|---|---|---|---|---|",
    ]
    for key, same in _on_cifar10():
        score = SCORE_OF_PAPER.get(key.method, same[0].score)
        first = [result for result in same if result.cell.split == 0]
        means = (average(first, auroc(score)), average(same, auroc(score)), average(same, auroc("logit")))
        published = printed.get(paper_row(1, key), {}).get(("AUROC", key.source))
        value = published.value if published else ""
        name = ", ".join([key.method, *key.settings, key.epochs_text])
        lines.append(f"| {name} | {score} | {' | '.join(map(entry_text, means))} | {value} |")
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
    """What every method has run: the splits 0, 2 and 4."""
    results, _ = Ledger(RESULTS).results()
    found = []
    for key, group in group_results(main_results(results)).items():
        same = [result for result in group if result.cell.split in (0, 2, 4)]
        if same and (key.source, key.family, key.encoder, key.recipe, key.epochs) == CIFAR10:
            found.append((key, same))
    return found


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


def search_table() -> str:
    """Settings compared on known classes alone."""
    lines = [
        "| data, split, known / left out | method, epochs | settings | ACC "
        f"| AUROC {' | AUROC '.join(SCORES)} |",
        f"|{'---|' * (4 + len(SCORES))}",
    ]
    for file in sorted((RESULTS / "search").glob("*.json")):
        result = read_json(file)
        source, family, split, left_out = re.match(r"(.+)-([a-z]+)(\d+)-(\d+)out", file.stem).groups()
        for row in result["rows"]:
            where = f"{source}, {family} {split}, {len(row['known'])} / {left_out}"
            phases = f"{row['epochs']} + {row['epochs']}" if row["method"] == "pmal" else f"{row['epochs']}"
            figures = [row["accuracy"], *(row["auroc"].get(score) for score in SCORES)]
            cells = " | ".join("" if value is None else f"{100 * value:.1f}" for value in figures)
            settings = " ".join(word.partition(".")[2] for word in row["settings"].split()) or "defaults"
            lines.append(f"| {where} | {row['method']}, {phases} | {settings} | {cells} |")
    return "\n".join(lines)


def teachers_table() -> str:
    """What averaged weights, and the mining classifiers as teachers, do: means over validation problems."""
    kinds = ("probability", "logit", "distance", "neighbors")
    groups = defaultdict(list)
    for file in sorted((RESULTS / "search" / "teachers").glob("*.json")):
        for row in read_json(file)["rows"]:
            settings = " ".join(word for word in row["settings"].split() if not word.startswith("data."))
            groups[file.stem.split("-")[0], row["method"], settings].append(row)
    lines = [
        f"| data, problems | method | settings | ACC | AUROC {' | AUROC '.join(kinds)} |",
        f"|{'---|' * (4 + len(kinds))}",
    ]
    for (source, method, settings), rows in groups.items():
        columns = [[row["accuracy"] for row in rows], *([row["auroc"].get(k) for row in rows] for k in kinds)]
        cells = ["" if None in column else f"{100 * statistics.mean(column):.1f}" for column in columns]
        head = f"{source}, {len(rows)} | {method} | {settings.partition('.')[2] or 'defaults'}"
        lines.append(f"| {head} | {' | '.join(cells)} |")
    return "\n".join(lines)


def combined_table() -> str:
    """Single scores and combinations of them on known classes alone, the best ten by their mean."""
    results = [read_json(file) for file in sorted((RESULTS / "search").glob("*.json"))]
    rows = [row for result in results for row in result["rows"] if row.get("combined")]
    found = [{**row["auroc"], **row["combined"]} for row in rows]
    found = [{name: value for name, value in row.items() if name != "combined"} for row in found]
    means = {name: statistics.mean(row[name] for row in found) for name in found[0]}
    best = sorted(means, key=means.get, reverse=True)[:10]
    lines = [f"| score, or mean of scores | mean AUROC of {len(found)} validation problems |", "|---|---|"]
    return "\n".join(lines + [f"| {name.replace('+', ', ')} | {100 * means[name]:.1f} |" for name in best])


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
        ('`method="pmal"`, `score="neighbors"`', "pmal", "neighbors"),
        ('`method="pmal"`, `score="combined"`', "pmal", "combined"),
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
    "search": search_table,
    "teachers": teachers_table,
    "combined": combined_table,
    "prototypes": prototypes_table,
    "precomputed": precomputed_table,
    "new class": new_class_table,
    **SPEED_TABLES,
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
