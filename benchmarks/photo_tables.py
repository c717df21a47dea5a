"""Tables of own photos, from benchmarks/results/photos/."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

PHOTOS = Path(__file__).parent / "results" / "photos"
FIGURES = {"accuracy": "ACC", "auroc": "AUROC", "accepted": "known accepted", "rejected": "unknown rejected"}
Rows = list[dict[str, Any]]


def encoders_table() -> str:
    """Every encoder with all training images, and rivals on the same features."""
    figures = {"accuracy": "ACC", "auroc": "AUROC near", "auroc far": "AUROC far"}
    figures |= {"accepted": "known accepted", "rejected": "unknown rejected"}
    figures["rejected at 95"] = "rejected at 95 % accepted"
    lines = _head("encoder", "method", *figures.values(), "CPU seconds", "MB")
    for (encoder, method), rows in _groups("encoders", "encoder", "method").items():
        cost = [_mean_of("cpu_seconds", rows), _mean_of("megabytes", rows)]
        lines.append(_line(encoder, method, *_means(rows, figures), *cost))
    return "\n".join(lines)


def curve_table() -> str:
    """The first encoder with few images of each class."""
    lines = _head("training images per class", "method", *FIGURES.values())
    for (limit, method), rows in _groups("curve", "limit", "method").items():
        lines.append(_line(limit, method, *_means(rows)))
    return "\n".join(lines)


def finetuned_table() -> str:
    """The same run on frozen and on fine-tuned features."""
    lines = _head("encoder", "features", *FIGURES.values(), "seconds")
    for (encoder, features), rows in _groups("finetuned", "encoder", "features").items():
        lines.append(_line(encoder, features, *_means(rows), _mean_of("seconds", rows)))
    return "\n".join(lines)


def memory_table() -> str:
    """Peak memory of embedding few and many photographs."""
    lines = _head("photographs", "peak memory, MiB", "seconds")
    for row in read_json(PHOTOS / "memory.json")["rows"]:
        lines.append(_line(f"{row['images']:,}", f"{row['peak_mib']:,.0f}", f"{row['seconds']:.0f}"))
    return "\n".join(lines)


def _groups(file: str, *keys: str) -> dict[tuple[Any, ...], Rows]:
    groups = defaultdict(list)
    for row in read_json(PHOTOS / f"{file}.json")["rows"]:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def _means(rows: Rows, figures: Iterable[str] = FIGURES) -> list[str]:
    """Mean over draws, and the smallest and largest; empty for a figure that was not measured."""
    found = []
    for name in figures:
        values = [100 * row[name] for row in rows if name in row]
        range_of = f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else ""
        found.append(range_of)
    return found


def _mean_of(name: str, rows: Rows) -> str:
    values = [row[name] for row in rows if row.get(name)]
    return f"{statistics.mean(values):.0f}" if values else ""


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


PHOTO_TABLES = {
    "photos encoders": encoders_table,
    "photos curve": curve_table,
    "photos finetuned": finetuned_table,
    "photos memory": memory_table,
}
