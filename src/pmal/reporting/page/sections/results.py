"""Sections of a run's report that consist of numbers: results and classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmal._runtime.text import counted
from pmal.methods import METHODS
from pmal.rejection.typicality.penalty import DECISION
from pmal.reporting.metrics import auroc
from pmal.reporting.page.document import Block, Cell, Section, Stat, Table
from pmal.reporting.page.numbers.mining_numbers import shown_classes
from pmal.reporting.page.numbers.run_numbers import confusion
from pmal.reporting.page.tested import CLASSES, Measured, Mined, RunFacts

MOST_UNKNOWN_ROWS = 12


def percent(share: float) -> str:
    """Return a share in percent, without the sign."""
    return f"{100 * share:.1f}"


def interval(estimate: Mapping[str, float]) -> str:
    """Return the interval of an estimate in percent, such as `89.0 to 91.2`."""
    return f"{percent(estimate['low'])} to {percent(estimate['high'])}"


def deciding_score(found: Mapping[str, Any]) -> str:
    """Return the name of the measured score that decides: with typicality, if the model has it."""
    return DECISION if DECISION in found["scores"] else found.get("decision", {}).get("score", "")


def headline(facts: RunFacts) -> list[Stat]:
    """Return the figures at the top of the page."""
    found = facts.metrics
    if found is None:
        return []
    plain = found.get("softmax")
    note = f"softmax before: {percent(plain['accuracy']['value'])}" if plain else interval(found["accuracy"])
    stats = [Stat(f"{percent(found['accuracy']['value'])} %", "Accuracy on known classes", note)]
    score = deciding_score(found) or next(iter(found["scores"]), "")
    if score in found["scores"]:
        for key, label in (("auroc", "AUROC"), ("oscr", "OSCR")):
            note = f"95 % interval {interval(found['scores'][score][key])}"
            value = percent(found["scores"][score][key]["value"])
            stats.append(Stat(f"{value} %", f"{label}, score {score}", note))
    if "unknown_rejected" in found.get("decision", {}):
        accepted = percent(found["decision"]["known_accepted"])
        value = percent(found["decision"]["unknown_rejected"])
        stats.append(Stat(f"{value} %", "Unknown images rejected", f"while {accepted} % of known pass"))
    return stats


def summary(facts: RunFacts) -> str:
    """Return the run in one or two sentences."""
    epochs, encoder = facts.settings["training"]["epochs"], facts.settings["encoder"]["name"]
    second = facts.settings["optimization"].get("epochs") if METHODS[facts.method].mines else 0
    length = f"{epochs} + {second} epochs" if second else counted(epochs, "epoch")
    text = f"A network ({encoder}, {length}"
    text += " per phase" if METHODS[facts.method].second and not second else ""
    text += f") learned {len(facts.class_names)} classes from {facts.images['train']:,} images."
    if facts.metrics and facts.metrics["unknown_images"]:
        text += f" It was tested on {facts.metrics['known_images']:,} new images of these classes"
        text += f" and on {facts.metrics['unknown_images']:,} images of {len(facts.unknown_names)}"
        text += " classes it has never seen, to which it should say unknown."
    elif facts.metrics:
        text += f" It was tested on {facts.metrics['known_images']:,} new images of these classes."
    return text


def results_section(facts: RunFacts) -> Section | None:
    """Return the table of metrics.json: every score of the model, and those of the softmax.

    None: the run has no metrics.
    """
    found = facts.metrics
    if found is None:
        return None
    methods = {facts.method: found} | ({"softmax": found["softmax"]} if "softmax" in found else {})
    lead = "Percent, with 95 % intervals over resampled test images. Larger is better, except for FPR95:"
    lead += " the share of unknown images that pass when 95 % of the known do."
    if not found["scores"]:
        plain = [[Cell(name), _estimate(result["accuracy"], 0.0)] for name, result in methods.items()]
        table = Table("Results", [Cell("method"), Cell("accuracy")], plain)
        lead = "This split has no unknown classes: there is the accuracy alone, with its 95 % interval."
        return Section("results", "Results", lead, [table])
    deciding = deciding_score(found)
    low = min(f["auroc"]["low"] for result in methods.values() for f in result["scores"].values())
    floor = max(0.0, np.floor(20 * low - 0.2) / 20)
    rows: list[list[Cell]] = []
    for name, result in methods.items():
        own = result is found
        accuracy = f"accuracy {percent(result['accuracy']['value'])} ({interval(result['accuracy'])})"
        rows.append([Cell(name if own else "softmax, before", accuracy)])
        rows += [
            [
                Cell(score, tag="decides" if own and score == deciding else ""),
                _estimate(figures["auroc"], floor, mark="" if own else "plain"),
                *(_number(figures[key]) for key in ("oscr", "fpr95")),
            ]
            for score, figures in result["scores"].items()
        ]
    heads = ["score", "AUROC", "OSCR", "FPR95 ↓"]
    head = [Cell(text, number=i > 1) for i, text in enumerate(heads)]
    return Section("results", "Results", lead, [Table("Results", head, rows, note=_result_note(facts))])


def classes_section(tested: Measured, mined: Mined | None, facts: RunFacts) -> Section:
    """Return the confusion of classes, and figures of each class."""
    lead = "Rows are what an image is, columns what the model says; shares are of the row."
    if len(facts.class_names) > CLASSES:
        lead += f" {CLASSES} of {len(facts.class_names):,} classes are shown, evenly spaced."
    blocks: list[Block] = [confusion_table(tested, facts), class_table(tested, mined, facts)]
    return Section("classes", "Classes", lead, blocks)


def confusion_table(tested: Measured, facts: RunFacts) -> Table:
    """Return the counts of answers for known classes, then for unknown ones."""
    classes = shown_classes(len(facts.class_names), CLASSES)
    answer = tested.model.nearest if tested.answer is None else tested.answer
    names, truth = _truth_rows(tested, facts, classes)
    counts = confusion(truth, answer, classes, len(names))
    others, threshold = len(facts.class_names) > len(classes), tested.answer is not None
    columns = [facts.class_names[k] for k in classes]
    columns += ["others"] * others + ["unknown"] * threshold
    kept = [*range(len(classes)), *([len(classes)] * others), *([len(classes) + 1] * threshold)]
    rows = []
    for row, (name, line) in enumerate(zip(names, counts, strict=True)):
        right = row if row < len(classes) else len(classes) + 1
        cells = [_confusion_cell(line[c], sum(line), right == c, len(classes) + 1 == c) for c in kept]
        rows.append([Cell(name), *cells])
    head = [
        Cell(name, mark="apart" if threshold and i == len(columns) else "")
        for i, name in enumerate(["", *columns])
    ]
    dense = len(columns) > 10 or max(map(len, columns)) > 9
    note = "Blue: right answers. Orange: wrong ones. Numbers are images."
    return Table("Confusion of classes", head, rows, note, style="matrix dense" if dense else "matrix")


def class_table(tested: Measured, mined: Mined | None, facts: RunFacts) -> Table:
    """Return a table with one line per class."""
    labels, nearest_N = tested.known.labels, tested.model.nearest[: len(tested.known)]
    known_N, unknown_M = tested.split(tested.model.scores[tested.score])
    heads = ["class", "test images", "named correctly"]
    heads += ["accepted"] if tested.answer is not None else []
    heads += [f"AUROC, {tested.score}"] if unknown_M is not None else []
    heads += ["prototypes", f"median {mined.symbol}"] if mined else []
    rows = []
    for k in shown_classes(len(facts.class_names), CLASSES):
        mine = labels == k
        row = [Cell(facts.class_names[k], mark="group"), Cell(f"{int(mine.sum()):,}", number=True)]
        row.append(_share(float((nearest_N[mine] == k).mean()) if mine.any() else None))
        if tested.answer is not None:
            accepted = tested.answer[: len(labels)][mine] >= 0
            row.append(_share(float(accepted.mean()) if mine.any() else None))
        if unknown_M is not None:
            row.append(_share(auroc(known_N[mine], unknown_M) if mine.any() else None))
        if mined:
            r = mined.r_N[mined.samples.labels == k]
            row.append(Cell(str(int((mined.prototypes.labels == k).sum())), number=True))
            row.append(Cell(f"{np.median(r):.2f}" if len(r) else "-", number=True))
        rows.append(row)
    head = [Cell(text, number=i > 0) for i, text in enumerate(heads)]
    return Table("Figures of each class", head, rows, note=tested.sampled.strip())


def _estimate(estimate: Mapping[str, float], floor: float, mark: str = "") -> Cell:
    low, value, high = ((estimate[key] - floor) / (1 - floor) for key in ("low", "value", "high"))
    return Cell(percent(estimate["value"]), interval(estimate), span=(low, value, high), mark=mark)


def _number(estimate: Mapping[str, float]) -> Cell:
    return Cell(percent(estimate["value"]), interval(estimate), number=True)


def _share(share: float | None) -> Cell:
    return Cell("-" if share is None else f"{percent(share)} %", share=share, number=True)


def _result_note(facts: RunFacts) -> str:
    found = facts.metrics or {}
    text = ""
    if "softmax" in found:
        text = "softmax: the first classifier of this run, before the optimization. "
    decision = found.get("decision")
    if decision is None:
        return text + "No images were held out, so there is no threshold."
    if not decision.get("rejects", True):
        return f"{text}No threshold rejects anything. {decision['note'][:1].upper()}{decision['note'][1:]}."
    text += f"The threshold of {decision['score']} is set to accept {100 * decision['accept']:g} %"
    text += f" of known images: it accepts {percent(decision['known_accepted'])} % of those tested"
    if "unknown_rejected" in decision:
        text += f" and rejects {percent(decision['unknown_rejected'])} % of the unknown ones"
        text += f" (macro-F1 {percent(decision['macro_f1'])})"
    return text + f". {decision['note'][:1].upper()}{decision['note'][1:]}."


def _truth_rows(tested: Measured, facts: RunFacts, classes: Sequence[int]) -> tuple[list[str], Any]:
    """Return the names of the rows, and the row of each test image (-1: not shown)."""
    row_of = {k: row for row, k in enumerate(classes)}
    names = [facts.class_names[k] for k in classes]
    truth = [row_of.get(int(label), -1) for label in tested.known.labels]
    if tested.unknown is not None:
        present = sorted(set(tested.unknown.labels.tolist()))
        single = len(present) <= MOST_UNKNOWN_ROWS
        names += [f"{facts.unknown_names[u]} (unknown)" for u in present] if single else ["unknown"]
        truth += [len(classes) + (present.index(u) if single else 0) for u in tested.unknown.labels.tolist()]
    return names, np.array(truth, dtype=np.int64)


def _confusion_cell(count: int, total: int, right: bool, unknown: bool) -> Cell:
    share = count / total if total else 0.0
    mark = ("" if right else "wrong ") + ("apart" if unknown else "")
    return Cell(
        f"{count:,}" if count else "·",
        shade=share if count else None,
        mark=mark.strip() if count or unknown else "",
    )
