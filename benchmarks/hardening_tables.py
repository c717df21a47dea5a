"""What was made to fail and what was read, as tables for docs/reliability.md."""

from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def failures_table() -> str:
    """Each command and kind of call: how many calls there are, how many were made to fail, and the end."""
    found = read_json(RESULTS / "failures" / "cpu.json")
    ends = ("one line", "done all the same", "ended by a library", "fault")
    lines = [f"| command | call | calls | made to fail | {' | '.join(ends)} |", "|" + "---|" * 8]
    for command, kinds in found["commands"].items():
        for kind, about in kinds.items():
            counts = (about.get(name, 0) for name in ("calls", "failed", *ends))
            lines.append(f"| {command} | {kind} | {' | '.join(f'{count:,}' for count in counts)} |")
    spent = f"{found['seconds']:,} s in all; calls that were not all made to fail are evenly spaced"
    return "\n".join([*lines, "", f"{spent} ([results](../benchmarks/results/failures/cpu.json))."])


def fuzz_table() -> str:
    """Each reader: how many inputs, how many of them were answered, and what was kept."""
    found = read_json(RESULTS / "fuzz" / "readers.json")
    lines = ["| reader | inputs | answered | kept inputs | their bytes |", "|" + "---|" * 5]
    readers: dict[str, dict[str, Any]] = found["readers"]
    for name, about in readers.items():
        counts = (about[key] for key in ("inputs", "answered", "corpus", "corpus_bytes"))
        lines.append(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |")
    total = sum(about["inputs"] for about in readers.values())
    text = f"{total:,} inputs in {found['minutes']:g} minutes; {found['findings']} broke a reader: mended"
    return "\n".join([*lines, "", f"{text} ([results](../benchmarks/results/fuzz/readers.json))."])


HARDENING_TABLES = {"failures": failures_table, "fuzz": fuzz_table}
