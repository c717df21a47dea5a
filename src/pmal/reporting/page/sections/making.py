"""Sections of a run's report on how it was made: training curves, split, recipe, manifest."""

from collections.abc import Mapping, Sequence
from typing import Any

from pmal.methods import METHODS
from pmal.reporting.page.document import Block, Cell, Details, Facts, Figure, Section, Table
from pmal.reporting.page.numbers.run_numbers import training_curves
from pmal.reporting.page.tested import CLASSES, RunFacts

Rows = Sequence[tuple[str, str]]
ASKED_FIRST = (
    "method",
    "seed",
    "encoder.name",
    "encoder.projection",
    "training.epochs",
    "training.optimizer",
    "training.learning_rate",
    "training.schedule",
    "training.batch_size",
    "data.augmentation",
    "mining.per_class",
    "mining.epsilon",
    "optimization.margin",
    "optimization.weight",
)
"""Settings that are shown at once. The others are folded."""


def training_section(facts: RunFacts) -> Section | None:
    """Return loss and learning rate over the epochs, from log.jsonl. None: the log has no epochs."""
    curves = training_curves(facts.log)
    if not curves:
        return None
    panels = [
        {
            "title": title,
            "x": "epoch",
            "y": axis,
            "yLog": logarithmic,
            "xWhole": True,
            "zero": not logarithmic,
            "series": [{"name": c["name"], "x": c["epoch"], "y": c[key]} for c in curves],
        }
        for title, axis, key, logarithmic in (
            ("Training loss", "mean over the epoch", "loss", True),
            ("Learning rate", "at the end of the epoch", "rate", False),
        )
    ]
    method, lead = METHODS[facts.method], "Loss and learning rate of every epoch."
    if method.mines:
        lead = "Classifiers are trained independently of each other; mining looks at where they disagree."
    if method.second:
        lead += " The training that follows has another loss, so the curves do not compare."
    label = "Loss and learning rate over the epochs of every training"
    return Section("training", "Training", lead, [Figure("curves", "lines", {"panels": panels}, label)])


def making_section(facts: RunFacts) -> Section:
    """Return split, recipe and manifest: what is needed to reproduce the figures."""
    shown = [("Split", _split(facts)), ("Recipe", _recipe(facts)), ("Manifest", _manifest(facts.manifest))]
    every = _setting_groups(facts.settings) + _manifest_groups(facts.manifest)
    blocks: list[Block] = [Facts(shown), Details("All settings, libraries and hardware", [Facts(every)])]
    rows = [[Cell(name), Cell(value)] for name, value in facts.manifest.get("sha256", {}).items()]
    if rows:
        table = Table("Checksums", [Cell("file"), Cell("sha256")], rows, style="sums")
        blocks.append(Details(f"Checksums of {len(rows)} files", [table]))
    lead = "Numbers of open-set recognition depend on which classes are unknown: the family of splits"
    lead += " belongs to every one of them."
    return Section("making", "How it was made", lead, blocks)


def _split(facts: RunFacts) -> Rows:
    rows = [("family", facts.split.partition("/")[0]), ("split", facts.split)]
    rows += [("known", _listed(facts.class_names))]
    rows += [("unknown", _listed(list(facts.unknown_names.values())))] if facts.unknown_names else []
    return rows + [(f"{part} images", f"{count:,}") for part, count in facts.images.items()]


def _recipe(facts: RunFacts) -> Rows:
    found = []
    for name in ASKED_FIRST:
        section, _, field = name.rpartition(".")
        if METHODS[facts.method].mines or section not in ("mining", "optimization"):
            found.append((name, _value((facts.settings[section] if section else facts.settings)[field])))
    return found


def _manifest(manifest: Mapping[str, Any]) -> Rows:
    top = [(name, manifest.get(name)) for name in ("pmal", "revision", "python", "processes")]
    top += [("torch", manifest.get("libraries", {}).get("torch"))]
    top += [(name, manifest.get("hardware", {}).get(name)) for name in ("device", "cpus")]
    return [(name, _value(value)) for name, value in top if value is not None]


def _setting_groups(settings: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    return [
        (f"Recipe · {name}", [(key, _value(value)) for key, value in part.items()])
        for name, part in settings.items()
        if isinstance(part, dict)
    ]


def _manifest_groups(manifest: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    groups = [(name, manifest.get(name) or {}) for name in ("libraries", "hardware")]
    rows = [(name, [(k, _value(v)) for k, v in part.items() if v is not None]) for name, part in groups]
    return [(f"Manifest · {name}", entries) for name, entries in rows if entries]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - CLASSES:,} more" if len(names) > CLASSES else ""
    return ", ".join(names[:CLASSES]) + more


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{k} = {v}" for k, v in value.items()) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
