"""Tables of docs/speed.md, from benchmarks/results/speed. Used by benchmarks/tables.py."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

RESULTS = Path(__file__).parent / "results" / "speed"


def speed_files() -> list[tuple[str, dict]]:
    """What benchmarks/speed.py wrote, with the name of the hardware."""
    found = []
    for file in sorted(RESULTS.glob("*.json"), key=lambda file: file.stem):
        result = read_json(file)
        found.append((hardware_name(result), result))
    return found


def hardware_name(result: dict[str, Any]) -> str:
    """What the figures of a file were measured on."""
    hardware = result["manifest"]["hardware"]
    threads = hardware.get("threads")
    return hardware.get("gpu") or f"{threads} CPU thread{'s' * (threads != 1)}"


def rows_of(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """All measurements of this kind, with the name of the hardware."""
    return [(name, row) for name, result in speed_files() for row in result.get(kind, [])]


def fastest(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest training of each network, by its name."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["images_per_s"] > best.get(row["encoder"], {"images_per_s": 0.0})["images_per_s"]:
            best[row["encoder"]] = row
    return best


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
        "| network alone | plain loop | typicality: one image, many |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = ("", "network_", "reference_")
    for name, row in rows_of("prediction"):
        latency = [
            " / ".join(rounded(row[f"{kind}{part}_ms"]) for part in ("median", "p99")) for kind in kinds
        ]
        speed = [rounded(row[f"{kind}images_per_s"]) for kind in kinds]
        # Files from before typicality was timed leave the cell empty.
        costs = [row[key] for key in ("typicality_latency_cost", "typicality_cost") if key in row]
        cells = " | ".join([*latency, *speed, ", ".join(f"{100 * cost:+.0f} %" for cost in costs)])
        precision = row.get("precision", "float32")
        lines.append(f"| {name} | {row['encoder']} {row['image_size']} px, {precision} | {cells} |")
    return "\n".join(lines)


def speed_summary_table() -> str:
    """What a GPU makes of it, in few lines: the best training row of each network, a whole run, answers."""
    lines = ["| | NVIDIA H200 | times the plain loop |", "|---|---|---|"]
    gpu = "NVIDIA H200"
    for row in fastest(row for name, row in rows_of("training") if name == gpu).values():
        network = f"{row['encoder']} {row['image_size']} px, batch {row['batch_size']}, {row['variant']}"
        lines.append(
            f"| training, {network} | {rounded(row['images_per_s'])} images/s | {row['ratio']:.1f} |"
        )
    for fit in (result["fit"] for name, result in speed_files() if name == gpu and "fit" in result):
        size = f"{fit['trainings']} x {fit['epochs']} epochs of {fit['training_images']:,} images"
        lines.append(f"| `pmal fit`, whole, {fit['encoder']}, {size} | {fit['seconds']:.0f} s | |")
    for row in (row for name, row in rows_of("prediction") if name == gpu):
        network = f"{row['encoder']} {row['image_size']} px, {row['precision']}"
        one = f"{row['median_ms']:.2f} ms for one image, {rounded(row['images_per_s'])} images/s"
        lines.append(f"| prediction, {network} | {one} | {row['latency_ratio']:.1f}, {row['ratio']:.1f} |")
    return "\n".join(lines)


def speed_mining_table() -> str:
    """Mining, in the same runs."""
    lines = ["| hardware | N | K | precision | Gpairs/s | times torch.cdist |", "|---|---|---|---|---|---|"]
    for name, row in rows_of("mining"):
        figures = f"{row['gpairs_per_s']:.3g} | {row['ratio']:.2f}"
        lines.append(f"| {name} | {row['n']:,} | {row['k']} | {row['precision']} | {figures} |")
    return "\n".join(lines)


def speed_threads_table() -> str:
    """Training with one CPU thread and with more."""
    lines = ["| network, batch | CPU threads | images/s |", "|---|---|---|"]
    for _, row in rows_of("threads"):
        network = f"{row['encoder']} {row['image_size']} px, {row['batch_size']}"
        lines.append(f"| {network} | {row['threads']} | {rounded(row['images_per_s'])} |")
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
    for name, row in rows_of("profile"):
        shares = [*(row["kinds"].get(kind, 0.0) for kind in kinds), row["idle"]]
        cells = " | ".join(f"{100 * share:.0f}" for share in shares)
        network = f"{row['encoder']} {row['image_size']} px, {row['batch_size']}"
        milliseconds = rounded(row["microseconds_per_step"] / 1e3)
        lines.append(f"| {name} | {network} | {row['phase']}, {row['variant']} | {milliseconds} | {cells} |")
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


def speed_streaming_table() -> str:
    """Epochs of one training, by where their images come from."""
    head = "| hardware | network, batch | images | images/s | waiting for images |"
    lines = [head, "|---|---|---|---|---|"]
    for name, result in speed_files():
        for place, epoch in result.get("epochs", {}).items():
            network = f"{result['encoder']} {result['size']} px, {result['batch_size']}"
            figures = f"{rounded(epoch['images_per_s'])} | {100 * epoch['waited_share']:.1f} %"
            lines.append(f"| {name} | {network} | {place} | {figures} |")
        cores = f"{result['manifest']['hardware']['cpus']} CPU cores"
        for rate, speed in result.get("cache", {}).items():
            what = f"cache in memory, {rate.partition('_')[0]}"
            lines.append(f"| {cores} | none, 224 px | {what} | {rounded(speed)} | |")
    return "\n".join(lines)


def speed_processes_table() -> str:
    """How soon worker processes start, and what they verify, beside other ways."""
    lines = ["| hardware | what | before | now |", "|---|---|---|---|"]
    for _, result in speed_files():
        if found := result.get("processes"):
            cores = f"{result['manifest']['hardware']['cpus']} CPU cores"
            now = f"{found['start_forked_first_s']:.1f}, later {found['start_forked_s']:.1f}"
            names = f"{rounded(found['names'])} names"
            starts = f"seconds to start {found['started']} processes on a set of {names}, and to end them"
            lines.append(f"| {cores} | {starts} | {found['start_spawned_s']:.1f} | {now} |")
            rates = [rounded(found[f"verified_in_{way}_per_s"]) for way in ("threads", "processes")]
            verified = f"images verified per second, {rounded(found['verified'])} of them"
            lines.append(f"| {cores} | {verified} | {rates[0]} | {rates[1]} |")
    return "\n".join(lines)


def speed_imagenet_table() -> str:
    """A run in the shape of ImageNet-LT, by stage."""
    lines = ["| hardware | run | stage | seconds | per second |", "|---|---|---|---|---|"]
    for name, result in speed_files():
        shape = result.get("shape", {})
        run = "{encoder} {size} px, {batch_size}; {classes} classes".format(**shape) if shape else ""
        for stage, (count, unit) in result.get("work", {}).items():
            seconds = result["stages"][stage]
            lines.append(f"| {name} | {run} | {stage} | {seconds:.1f} | {rounded(count / seconds)} {unit} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


SPEED_TABLES = {
    "speed": speed_table,
    "speed summary": speed_summary_table,
    "speed prediction": speed_prediction_table,
    "speed mining": speed_mining_table,
    "speed threads": speed_threads_table,
    "speed profile": speed_profile_table,
    "speed fit": speed_fit_table,
    "speed curves": speed_curves_table,
    "speed streaming": speed_streaming_table,
    "speed processes": speed_processes_table,
    "speed imagenet": speed_imagenet_table,
}
