"""Results on far images as text: a table of decisions and one of rankings for every run."""

from collections.abc import Mapping
from typing import Any

from pmal.benchmark.far.far_scores import BOTH
from pmal.reporting.tables import align

_DECISIONS = ("images", "count", "AUROC near", "both", "FPR95 near", "both", "rejected near", "both")


def far_text(result: Mapping[str, Any]) -> str:
    """Return the tables of all runs as text."""
    return "\n\n".join(map(_run_text, result["runs"]))


def in_words(about: Mapping[str, Any]) -> str:
    """Return a short description of a run.

    >>> in_words({"method": "pmal", "source": "sample", "split": "arpl/0", "encoder": "small", "seed": 2})
    'pmal sample arpl/0 small seed 2'
    """
    names = (str(about[name]) for name in ("method", "source", "split", "encoder") if name in about)
    return " ".join(names) + (f" seed {about['seed']}" if "seed" in about else "")


def _run_text(run: Mapping[str, Any]) -> str:
    known, score = run["known"], run["score"]
    rows = [["known", f"{known['count']:,}", "", "", "", "", *_rejected(known)]]
    for row in run["far"]:
        pair = [row["scores"].get(name) for name in (score, BOTH)]
        rankings = [_percent(one, key) for key in ("auroc", "fpr95") for one in pair]
        rows.append([row["images"], f"{row['count']:,}", *rankings, *_rejected(row)])
    names = list(run["far"][0]["scores"]) if run["far"] else []
    scores = [
        [row["images"], *(_percent(row["scores"][name], "auroc") for name in names)] for row in run["far"]
    ]
    near = f"near: {score}; both: with typicality, at accept {run['accept']:g}; percent"
    left = f"left out: {', '.join(run['left_out'])}" if run["left_out"] else ""
    tables = [align([_DECISIONS, *rows]), near, "", align([["AUROC of", *names], *scores])]
    return "\n".join([in_words(run["about"]), *tables, *([left] if left else [])])


def _rejected(row: Mapping[str, Any]) -> list[str]:
    return [_percent(row["rejected"], kind) for kind in ("near", BOTH)]


def _percent(found: Mapping[str, float] | None, key: str) -> str:
    return f"{100 * found[key]:.1f}" if found and key in found else ""
