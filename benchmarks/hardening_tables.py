"""What was made to fail and what was read, as tables for docs/reliability.md."""

import itertools
from pathlib import Path
from typing import Any

from pmal._runtime.files import read_json

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def failures_table() -> str:
    """Each command and kind of call: how many calls there are, how many were made to fail, and the end.

    Of several files that have a kind of call, the one counts in which most of them were made to fail.
    """
    files = [read_json(path) for path in sorted((RESULTS / "failures").glob("*.json"))]
    ends = ("one line", "done all the same", "ended by a library", "fault")
    lines = [f"| command | call | calls | made to fail | {' | '.join(ends)} |", "|" + "---|" * 8]
    for command, kind in itertools.product(*_in_order(files)):
        tried = [found["commands"].get(command, {}).get(kind) for found in files]
        if any(tried):
            most = max(filter(None, tried), key=lambda about: about["failed"])
            counts = (most.get(name, 0) for name in ("calls", "failed", *ends))
            lines.append(f"| {command} | {kind} | {' | '.join(f'{count:,}' for count in counts)} |")
    spent = f"{sum(found['seconds'] for found in files):,} s in all"
    note = f"{spent}; calls that were not all made to fail are evenly spaced"
    return "\n".join([*lines, "", f"{note} ([results](../benchmarks/results/failures))."])


def _in_order(files: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the names of all commands, and of all kinds of calls, in the order of the first file."""
    commands = dict.fromkeys(name for found in files for name in found["commands"])
    kinds = dict.fromkeys(kind for found in files for job in found["commands"].values() for kind in job)
    return list(commands), list(kinds)


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


def against_table() -> str:
    """The service and an earlier version of it, in turns on one machine."""
    found = read_json(RESULTS / "service" / "against-8e197f3.json")
    lines = ["| | before | now | ratio |", "|---|---|---|---|"]
    names = {
        "requests_per_processor_s": "requests per processor second",
        "requests_per_s": "requests/s",
        "median_ms": "median ms",
        "p99_ms": "p99 ms",
    }
    for key, name in names.items():
        about = found["medians"][key]
        lines.append(f"| {name} | {about['other']:,.0f} | {about['this']:,.0f} | {about['ratio']:.2f} |")
    return "\n".join([*lines, "", f"While they were measured: {found['note']}."])


def soak_table() -> str:
    """What happened while the service was loaded for minutes, and what came of it."""
    found = read_json(RESULTS / "service" / "soak.json")
    events = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in found["events"].items())
    lives = "; ".join(f"{first:.0f}, {most:.0f}, {last:.0f}" for first, most, last in found["memory_mb"])
    rows = {
        "minutes, clients": f"{found['seconds'] / 60:g}, {found['clients']}",
        "events": events,
        "requests": f"{found['requests']:,}",
        "answers compared with those of single requests": f"{found['answers_compared']:,}",
        "wrong answers": found["wrong"],
        "memory of each process in MB: at first, most, at last": lives,
        "most growth after half of a process's life": f"{100 * found['memory_growth']:.1f} %",
        "tracebacks in the log": found["tracebacks"],
    }
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join([*lines, "", f"While it ran: {found['note']}."])


HARDENING_TABLES = {
    "failures": failures_table,
    "fuzz": fuzz_table,
    "against": against_table,
    "soak": soak_table,
}
