"""Markdown tables of README and docs, from benchmarks/results/. A test holds the two together.

python benchmarks/tables.py            # print them
python benchmarks/tables.py --write    # put them into README.md and docs/*.md, between their marks
"""

import functools
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json, write_text
from pmal.benchmark.ledger import Ledger
from pmal.benchmark.tables import COMMON_SCORES as SCORES
from pmal.benchmark.tables import methods_tables, paired_tables, paper_tables, render

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def benchmark_table(chosen: str) -> str:
    """What `pmal benchmark table` prints, as Markdown: methods, paired, or tables of the paper."""
    results, _ = Ledger(RESULTS).results()
    if chosen in ("methods", "paired"):
        return render({"methods": methods_tables, "paired": paired_tables}[chosen](results), "markdown")
    tables, _ = paper_tables(Ledger(RESULTS))
    wanted = int(chosen) if chosen.isdecimal() else None
    return render([table for table in tables if table.number == wanted], "markdown")


def pmal_table() -> str:
    """Of the table of methods, the rows of PMAL and of the softmax that trains as long."""
    kept = re.compile(r"\| pmal, |\| softmax equally long, |\| data, splits |\|---")
    lines = benchmark_table("methods").splitlines()
    return "\n".join(line for line in lines if not line.startswith("|") or kept.search(line))


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
        hardware = result["manifest"]["hardware"]
        name = hardware.get("gpu") or f"{hardware['threads']} CPU threads"
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


def speed_files() -> list[tuple[str, dict]]:
    """What benchmarks/speed.py wrote, with the name of the hardware."""
    found = []
    for file in sorted((RESULTS / "speed").glob("*.json")):
        result = read_json(file)
        hardware = result["manifest"]["hardware"]
        threads = f"{hardware.get('threads')} CPU thread{'s' * (hardware.get('threads') != 1)}"
        found.append((hardware.get("gpu") or threads, result))
    return found


def speed_table() -> str:
    """Training steps beside the plain loop, and the PMAL step."""
    lines = [
        "| hardware | network, batch | step | images/s | times the plain loop | TFLOP/s, of products "
        "| of copy | GiB | PMAL step, images/s | cost per image |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in speed_files():
        joint = {step_kind(row): row for row in result.get("pmal_step", [])}
        for row in result.get("training", []):
            other = joint.get(step_kind(row))
            pmal = f"{rounded(other['images_per_s'])} | {other['cost_per_image']:.2f}" if other else " | "
            memory = "" if row["memory_gib"] is None else f"{row['memory_gib']:.1f}"
            times = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            lines.append(
                f"| {name} | {row['encoder']} {row['image_size']} px, {row['batch_size']}{strong(row)} "
                f"| {row['variant']}, {row['precision']} | {rounded(row['images_per_s'])} | {times} "
                f"| {row['tflops']:.3g}, {100 * row['share_of_peak']:.0f} % "
                f"| {100 * row['share_of_bandwidth']:.0f} % | {memory} | {pmal} |"
            )
    return "\n".join(lines)


def step_kind(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["encoder"], row["variant"], strong(row)


def strong(row: dict[str, Any]) -> str:
    return ", strong augmentation" if row.get("augmentation") == "strong" else ""


def speed_prediction_table() -> str:
    """Answers of a finished model."""
    lines = [
        "| hardware | network | one image, median / 99 % in ms | network alone | plain loop | images/s "
        "| network alone | plain loop |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in speed_files():
        for row in result.get("prediction", []):
            kinds = ("", "network_", "reference_")
            latency = [
                " / ".join(rounded(row[f"{kind}{part}_ms"]) for part in ("median", "p99")) for kind in kinds
            ]
            speed = [rounded(row[f"{kind}images_per_s"]) for kind in kinds]
            cells = " | ".join(latency + speed)
            precision = row.get("precision", "float32")
            lines.append(f"| {name} | {row['encoder']} {row['image_size']} px, {precision} | {cells} |")
    return "\n".join(lines)


def speed_summary_table() -> str:
    """What a GPU makes of it, in few lines: the best training row of each network, a whole run, answers."""
    lines = ["| | NVIDIA H200 | times the plain loop |", "|---|---|---|"]
    results = [result for name, result in speed_files() if name == "NVIDIA H200"]
    best: dict[str, Any] = {}
    for row in (row for result in results for row in result.get("training", [])):
        if row["images_per_s"] > best.get(row["encoder"], {"images_per_s": 0})["images_per_s"]:
            best[row["encoder"]] = row
    for row in best.values():
        network = f"{row['encoder']} {row['image_size']} px, batch {row['batch_size']}, {row['variant']}"
        lines.append(
            f"| training, {network} | {rounded(row['images_per_s'])} images/s | {row['ratio']:.1f} |"
        )
    for fit in (result["fit"] for result in results if "fit" in result):
        size = f"{fit['trainings']} x {fit['epochs']} epochs of {fit['training_images']:,} images"
        lines.append(f"| `pmal fit`, whole, {fit['encoder']}, {size} | {fit['seconds']:.0f} s | |")
    for row in (row for result in results for row in result.get("prediction", [])):
        network = f"{row['encoder']} {row['image_size']} px, {row['precision']}"
        one = f"{row['median_ms']:.2f} ms for one image, {rounded(row['images_per_s'])} images/s"
        lines.append(f"| prediction, {network} | {one} | {row['latency_ratio']:.1f}, {row['ratio']:.1f} |")
    return "\n".join(lines)


def speed_mining_table() -> str:
    """Mining, in the same runs."""
    lines = ["| hardware | N | K | precision | Gpairs/s | times torch.cdist |", "|---|---|---|---|---|---|"]
    for name, result in speed_files():
        for row in result.get("mining", []):
            figures = f"{row['gpairs_per_s']:.3g} | {row['ratio']:.2f}"
            lines.append(f"| {name} | {row['n']:,} | {row['k']} | {row['precision']} | {figures} |")
    return "\n".join(lines)


def speed_threads_table() -> str:
    """One CPU thread and more, on a machine to oneself and on one that is shared."""
    lines = ["| machine | threads wait | network, batch | threads | images/s |", "|---|---|---|---|---|"]
    for _, result in speed_files():
        waiting = result.get("environment", {}).get("OMP_WAIT_POLICY", "spinning (default)").lower()
        for row in result.get("threads", []):
            network = f"{row['encoder']} {row['image_size']} px, {row['batch_size']}"
            figures = f"{row['threads']} | {rounded(row['images_per_s'])}"
            lines.append(f"| {result['note']} | {waiting} | {network} | {figures} |")
    return "\n".join(lines)


def speed_profile_table() -> str:
    """Where the time of a step goes."""
    kinds = (
        "convolution",
        "batch norm",
        "elementwise",
        "optimizer",
        "copy",
        "layout",
        "matrix product",
        "other",
    )
    lines = [
        f"| hardware | network, batch | phase, step | ms per step | {' | '.join(kinds)} | idle |",
        f"|{'---|' * (5 + len(kinds))}",
    ]
    for name, result in speed_files():
        for row in result.get("profile", []):
            shares = [*(row["kinds"].get(kind, 0.0) for kind in kinds), row["idle"]]
            cells = " | ".join(f"{100 * share:.0f}" for share in shares)
            network = f"{row['encoder']} {row['image_size']} px, {row['batch_size']}"
            milliseconds = rounded(row["microseconds_per_step"] / 1e3)
            lines.append(
                f"| {name} | {network} | {row['phase']}, {row['variant']} | {milliseconds} | {cells} |"
            )
    return "\n".join(lines)


def speed_fit_table() -> str:
    """A complete run, by stage."""
    lines = ["| hardware | trainings x epochs x images | seconds | by stage |", "|---|---|---|---|"]
    for name, result in speed_files():
        if "fit" in result:
            fit = result["fit"]
            stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in fit["stages"].items())
            size = f"{fit['encoder']}, {fit['trainings']} x {fit['epochs']} x {fit['training_images']:,}"
            lines.append(f"| {name} | {size} | {fit['seconds']:.0f} | {stages} |")
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


def rounded(value: float) -> str:
    """Three digits of small figures, whole numbers of large ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def speed_curves_table() -> str:
    """Loss by epoch of plain and fast steps, as mean and deviation over seeds."""
    head = "| hardware | training | steps | images/s | loss after epochs | ACC | AUROC logit |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for name, result in speed_files():
        curves = result.get("curves", {"runs": []})
        for kind in dict.fromkeys(run["kind"] for run in curves["runs"]):
            runs = [run for run in curves["runs"] if run["kind"] == kind]
            total = len(runs[0]["loss"])
            marks = sorted({1, max(1, total // 4), max(1, total // 2), total})
            losses = ", ".join(f"{e}: {spread([run['loss'][e - 1] for run in runs], 3)}" for e in marks)
            figures = [[100 * run["accuracy"] for run in runs], [100 * run["auroc"]["logit"] for run in runs]]
            cells = " | ".join(spread(values, 1) for values in figures)
            split = f"{curves['source']} {curves['family']} {curves['split']}"
            training = f"{split}, {curves['encoder']}, {len(runs)} seed{'s' * (len(runs) > 1)}"
            speed = rounded(statistics.median(run["images_per_s"] for run in runs))
            lines.append(f"| {name} | {training} | {kind} | {speed} | {losses} | {cells} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


TABLES = {
    **{name: functools.partial(benchmark_table, name) for name in ("methods", "paired")},
    **{f"paper {name}": functools.partial(benchmark_table, name) for name in (*"12345", "text")},
    "pmal": pmal_table,
    "quality": quality_table,
    "mining": mining_table,
    "search": search_table,
    "teachers": teachers_table,
    "combined": combined_table,
    "prototypes": prototypes_table,
    "precomputed": precomputed_table,
    "new class": new_class_table,
    "speed": speed_table,
    "speed summary": speed_summary_table,
    "speed prediction": speed_prediction_table,
    "speed mining": speed_mining_table,
    "speed threads": speed_threads_table,
    "speed profile": speed_profile_table,
    "speed fit": speed_fit_table,
    "speed curves": speed_curves_table,
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
