"""The figures of `pmal bench` as tables of text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pmal.reporting.tables import align

Cell = Callable[[Mapping[str, Any]], str]
Column = tuple[str, Cell]


def bench_text(found: Mapping[str, Any]) -> str:
    """Return what was measured as tables."""
    hardware = found["manifest"]["hardware"]
    blocks = [hardware.get("gpu") or f"{hardware['threads']} CPU threads"]
    for title, columns in TABLES.items():
        kind, _, text = title.partition(": ")
        if found[kind]:
            cells = [[head, *map(cell, found[kind])] for head, cell in columns]
            filled = [column for column in cells if any(column[1:])]
            blocks.append(f"{text}\n" + align(list(zip(*filled, strict=True))))
    return "\n\n".join([*blocks, *found["notes"]])


def _number(name: str, form: str = ",.0f") -> Cell:
    def cell(row: Mapping[str, Any]) -> str:
        return "" if row[name] is None else f"{row[name]:{form}}"

    return cell


def _percent(name: str) -> Cell:
    return lambda row: f"{100 * row[name]:.0f} %"


def _network(row: Mapping[str, Any]) -> str:
    return f"{row['encoder']} {row['image_size']} px"


def _milliseconds(prefix: str) -> Cell:
    return lambda row: f"{row[f'{prefix}median_ms']:.2f} / {row[f'{prefix}p99_ms']:.2f}"


_ENCODER: Sequence[Column] = [("encoder", _network), ("batch", _number("batch_size"))]
_SPEED: Column = ("images/s", _number("images_per_s"))
_SPREAD: Column = ("spread", _percent("spread"))
_RATIO: Sequence[Column] = [
    ("reference", _number("reference_images_per_s")),
    ("times reference", _number("ratio", ".2f")),
]
_MEMORY: Column = ("GiB", _number("memory_gib", ".2f"))

TABLES: Mapping[str, Sequence[Column]] = {
    "training: Training": [
        *_ENCODER,
        _SPEED,
        _SPREAD,
        *_RATIO,
        _MEMORY,
    ],
    "pmal_step: PMAL step, prototypes counted as images": [
        *_ENCODER,
        ("prototypes", _number("prototypes")),
        _SPEED,
        _SPREAD,
        ("cost per image, plain = 1", _number("cost_per_image", ".2f")),
        _MEMORY,
    ],
    "mining: Mining": [
        ("samples", _number("n")),
        ("classes", _number("k")),
        ("precision", lambda row: str(row["precision"])),
        ("Gpairs/s", _number("gpairs_per_s", ".3g")),
        _SPREAD,
    ],
    "prediction: Prediction: milliseconds for one image, median / 99 %, and images/s": [
        ("encoder", _network),
        ("precision", lambda row: str(row["precision"])),
        ("ms", _milliseconds("")),
        ("for typicality", _percent("typicality_latency_cost")),
        ("network alone", _milliseconds("network_")),
        ("reference", _milliseconds("reference_")),
        _SPEED,
        _SPREAD,
        ("for typicality", _percent("typicality_cost")),
        ("network alone", _number("network_images_per_s")),
        *_RATIO,
    ],
}
