"""Figures as text: percentages with their 95 % intervals, always with the split family."""

from collections.abc import Mapping, Sequence
from typing import Any

from pmal._runtime.text import counted

_SHARES = ("known_accepted", "unknown_rejected")
COLUMNS = {"auroc": "AUROC", "fpr95": "FPR95", "oscr": "OSCR"}


def run_table(metrics: Mapping[str, Any]) -> str:
    """Return the closing table of a run, from its metrics.json."""
    about = metrics["about"]
    classes = f"{about['known_classes']} known / {about['unknown_classes']} unknown classes"
    head = [
        f"{about['source']} · split {about['split']} ({classes}) · {about['method']}, {about['encoder']}, "
        f"{counted(about['epochs'], 'epoch')}, {about['augmentation']} augmentation, seed {about['seed']}",
        f"ACC {with_interval(metrics['accuracy'])} on {metrics['known_images']:,} known test images",
    ]
    if not metrics["scores"]:
        return "\n".join(
            [*head, "no unknown classes in this split: no open-set figures", *_decision(metrics)]
        )
    found = {about["method"]: metrics} | ({"softmax": metrics["softmax"]} if "softmax" in metrics else {})
    rows = [
        [
            method,
            score,
            *(with_interval(figures[column]) for column in COLUMNS),
            f"family={about['split'].split('/')[0]}",
        ]
        for method, result in found.items()
        for score, figures in result["scores"].items()
    ]
    table = align([["method", "score", *COLUMNS.values(), ""], *rows])
    note = (
        f"{metrics['unknown_images']:,} unknown test images; percent [95 % interval]; FPR95: lower is better"
    )
    if "softmax" in metrics:
        accuracy, epochs = with_interval(metrics["softmax"]["accuracy"]), about["epochs"]
        note += f"\nsoftmax: the first classifier of this run after {counted(epochs, 'epoch')}, "
        note += f"ACC {accuracy}; "
        second = about.get("optimization", {})
        start = "from there" if second.get("init", "warm") == "warm" else "from new weights"
        note += f"{about['method']}: {second.get('epochs') or epochs} more {start}"
        if "passes" in about:  # not in runs of earlier versions
            note += f"\ncost in passes of every training image: {about['method']} {about['passes']:.0f}, "
            note += f"softmax {epochs}"
    return "\n".join([*head, "", table, note, *_decision(metrics), *_frozen(metrics)])


def _frozen(metrics: Mapping[str, Any]) -> list[str]:
    """Return the figures without fine-tuning next to those with it, by the deciding score."""
    if "frozen" not in metrics:
        return []
    rows = [["", "ACC", "AUROC", "known accepted", "unknown rejected"]]
    for name, found in (("frozen", metrics["frozen"]), ("fine-tuned", metrics)):
        decision = found.get("decision", {})
        scores = found["scores"]
        deciding = scores.get("decision", scores.get(decision.get("score"), {}))
        shares = (f"{100 * decision[k]:.1f}" if k in decision else "" for k in _SHARES)
        auroc = with_interval(deciding["auroc"]) if deciding else ""
        rows.append([name, with_interval(found["accuracy"]), auroc, *shares])
    return ["", align(rows)]


def _decision(metrics: Mapping[str, Any]) -> list[str]:
    """Return what the stored threshold did with the test images, and what it promises for others."""
    found = metrics.get("decision")
    if found is None:
        return ["no threshold: no images were held out for it (too few, or data.held_out = 0)"]
    text = f"threshold of {found['score']} for {100 * found['accept']:g} % of known images"
    if not found.get("rejects", True):
        return [f"{text}: none, so nothing is rejected; --accept takes a lower share", found["note"]]
    text += f": accepts {100 * found['known_accepted']:.1f} % of those tested"
    if "unknown_rejected" in found:
        text += f", rejects {100 * found['unknown_rejected']:.1f} % of the unknown ones"
        text += f"; macro-F1 {100 * found['macro_f1']:.1f}"
    return [text, found["note"]]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns of equal width, two spaces apart.

    >>> print(align([["score", "AUROC"], ["logit", "90.1"]]))
    score  AUROC
    logit  90.1
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def with_interval(estimate: Mapping[str, float]) -> str:
    """Return an estimate in percent, such as `90.1 [89.0, 91.2]`."""
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
