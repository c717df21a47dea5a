"""Tables of what was compared on known classes alone, from benchmarks/results/search/."""

import math
import statistics
from collections import defaultdict
from pathlib import Path

from pmal._runtime.files import read_json
from pmal.rejection.calibration.held_out import COMBINED

SEARCH = Path(__file__).parent / "results" / "search"
SCORES = ("probability", "logit", "distance", "neighbors")
DECIDING = "distance, 2 neighbors, logit"
DEFAULT_LOSS = ("", "optimization.margin=0.5 optimization.weight=1")
"""The hinge with the paper's margin, as the problems of the sample and of the other sets name it."""


LENGTH_SETTINGS = ("optimization.epochs", "optimization.refresh")


def loss_table() -> str:
    """Losses of the second training: means over the problems of a set."""
    combined = {(row["problem"], row["settings"]): row["auroc"][DECIDING] for row in _score_rows()}
    groups = defaultdict(list)
    for folder in ("loss", "weight"):
        for file in sorted((SEARCH / folder).glob("*.json")):
            for row in read_json(file)["rows"]:
                mined = row["method"] == "pmal"
                loss = _loss(row["settings"]) if mined else "none"
                key = (file.stem.split("-")[0], row["method"], _length(row), loss)
                own = row["auroc"].get("combined")  # of files that are newer than the score
                found = combined.get((file.stem, row["settings"]), own) if mined else None
                groups[key].append({**row, "auroc": {**row["auroc"], "combined": found}})
    lines = _head(
        "data", "problems", "method, epochs", "passes", "loss", "ACC", *_named((*SCORES, "combined"))
    )
    for (source, method, length, loss), rows in sorted(groups.items()):
        figures = [
            [row["accuracy"] for row in rows],
            *([row["auroc"].get(score) for row in rows] for score in (*SCORES, "combined")),
        ]
        passes = f"{statistics.mean(row['passes'] for row in rows):.0f}"
        lines.append(_line(source, str(len(rows)), f"{method}, {length}", passes, loss, *map(_mean, figures)))
    return "\n".join(lines)


def length_table() -> str:
    """Lengths of the two trainings, prototypes per step, and dropout: one row for a network."""
    lines = _head("data, split", "method, epochs", "passes", "settings", "ACC", *_named(SCORES))
    for file in sorted((SEARCH / "length").glob("*.json")):
        source, family, *_ = file.stem.split("-")
        for row in sorted(read_json(file)["rows"], key=lambda row: (row["method"], row["settings"])):
            figures = [[row["accuracy"]], *([row["auroc"].get(score)] for score in SCORES)]
            settings = _short(row["settings"], hidden=("optimization.epochs", "training.epochs"))
            where = f"{source}, {family.removeprefix('arpl')}"
            passes = f"{row['passes']:.0f}"
            lines.append(
                _line(where, f"{row['method']}, {_length(row)}", passes, settings, *map(_mean, figures))
            )
    return "\n".join(lines)


def scores_table() -> str:
    """Single scores and combinations, by set, for the default loss; and the same without a prototype loss."""
    by_score: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _score_rows():
        loss = row["settings"].partition("refresh=32")[2].strip() or row["settings"]
        kind = "loss" if loss in DEFAULT_LOSS else "plain" if loss == "optimization.weight=0" else None
        if kind:
            for score, value in row["auroc"].items():
                by_score[score][row["problem"].split("-")[0], kind].append(value)
    sets = ("cifar10", "tinyimagenet", "sample")
    columns = [*((name, "loss") for name in sets), *((name, "plain") for name in sets[:2])]
    counts = [f"{name}, {len(by_score['logit'][name, kind])}" for name, kind in columns]
    heads = [*counts[:3], "mean of the three", *(f"{head}, weight 0" for head in counts[3:])]
    lines = _head("score, or mean of scores", *heads)
    means = {
        score: [statistics.mean(found[column]) for column in columns] for score, found in by_score.items()
    }
    for score, values in sorted(means.items(), key=lambda item: -statistics.mean(item[1][:3])):
        overall = statistics.mean(values[:3])
        name = f"**{score}**" if score == DECIDING else score
        lines.append(_line(name, *(f"{100 * v:.1f}" for v in (*values[:3], overall, *values[3:]))))
    return "\n".join(lines)


def penalty_table() -> str:
    """What typicality adds to the deciding score: a row for each start, weight and form of the statistics."""
    groups = defaultdict(list)
    for row in read_json(SEARCH / "penalty.json")["rows"]:
        groups[row["problem"].split("-")[0], _penalty_text(row)].append(row)
    return _rejected_table("penalty", dict(sorted(groups.items(), key=lambda group: group[0][0])))


def _penalty_text(row: dict) -> str:
    if not row["weight"]:
        return "none"
    start = "u" if not row["start"] else f"(u - log {math.exp(row['start']):.0f})"
    deviations = f", {row['share']:g} log(deviation + {row['offset']:g})" if row["share"] else ", means alone"
    return f"{row['weight']:g} {start}²{deviations}"


def directions_table() -> str:
    """How many directions of each layer typicality takes: a row for each number."""
    rows = read_json(SEARCH / "directions.json")["rows"]
    return _rejected_table(
        "directions", {(row["problem"].split("-")[0], str(row["directions"])): [row] for row in rows}
    )


def _rejected_table(setting: str, groups: dict[tuple[str, str], list[dict]]) -> str:
    first = next(iter(groups.values()))[0]
    made = [name for name in first["rejected"] if name not in ("known", "left out")]
    kinds = ("known", "left out", *made)
    lines = _head("data", setting, "AUROC left-out classes", *(f"rejected: {kind}" for kind in kinds))
    for (source, name), rows in groups.items():
        shares = [[row["rejected"][kind] for row in rows] for kind in kinds]
        lines.append(_line(source, name, *map(_mean, ([row["auroc"] for row in rows], *shares))))
    return "\n".join(lines)


def features_table() -> str:
    """What decides on features of a frozen network: means over validation problems."""
    groups, scores = (
        defaultdict(list),
        ("logit", "distance", "neighbors", "combined", "typicality", "decision"),
    )
    for row in read_json(SEARCH / "features.json")["rows"]:
        groups[row["data"], row["settings"]].append(row["auroc"])
    lines = _head("data", "settings", *(f"AUROC {score}" for score in scores))
    for (data, settings), rows in groups.items():
        means = (_mean([row.get(score) for row in rows]) for score in scores)
        lines.append(_line(data, settings, *means))
    return "\n".join(lines)


def teachers_table() -> str:
    """What averaged weights, and the mining classifiers as teachers, do: means over validation problems."""
    groups = defaultdict(list)
    for file in sorted((SEARCH / "teachers").glob("*.json")):
        for row in read_json(file)["rows"]:
            settings = " ".join(word for word in row["settings"].split() if not word.startswith("data."))
            groups[file.stem.split("-")[0], row["method"], settings].append(row)
    lines = _head("data, problems", "method", "settings", "ACC", *_named(SCORES))
    for (source, method, settings), rows in groups.items():
        columns = [
            [row["accuracy"] for row in rows],
            *([row["auroc"].get(k) for row in rows] for k in SCORES),
        ]
        shown = settings.partition(".")[2] or "defaults"
        lines.append(_line(f"{source}, {len(rows)}", method, shown, *map(_mean, columns)))
    return "\n".join(lines)


def turned_table() -> str:
    """Turned images as classes of their own: means over the problems of a set."""
    groups, scores = defaultdict(list), (*SCORES, "combined")
    for file in sorted((SEARCH / "turned").glob("*.json")):
        for row in read_json(file)["rows"]:
            words = [w for w in row["settings"].split() if not w.startswith(LENGTH_SETTINGS)]
            groups[file.stem.split("-")[0], " ".join(words)].append(row)
    lines = _head("data", "problems", "turned", "loss", "ACC", *_named(scores))
    for (source, settings), rows in sorted(groups.items()):
        share = next((w.partition("=")[2] for w in settings.split() if w.startswith("training.turned")), "0")
        loss = _loss(" ".join(w for w in settings.split() if not w.startswith("training.")))
        columns = [[row["accuracy"] for row in rows], *([row["auroc"][k] for row in rows] for k in scores)]
        lines.append(_line(source, str(len(rows)), share, loss, *map(_mean, columns)))
    return "\n".join(lines)


SEARCH_TABLES = {
    "search turned": turned_table,
    "search loss": loss_table,
    "search length": length_table,
    "search scores": scores_table,
    "search penalty": penalty_table,
    "search directions": directions_table,
    "search features": features_table,
    "teachers": teachers_table,
}


def _score_rows() -> list[dict]:
    assert COMBINED == {"distance": 1.0, "neighbors": 2.0, "logit": 1.0}, "the table marks another one"
    return read_json(SEARCH / "scores.json")["rows"]


def _loss(settings: str) -> str:
    values = dict(word.split("=") for word in settings.split())
    weight, margin = values.get("optimization.weight", "1"), values.get("optimization.margin", "0.5")
    temperature = values.get("optimization.temperature", "0")
    if weight == "0":
        return "none (weight 0)"
    kind = "hinge" if temperature == "0" else f"temperature {temperature}"
    return f"{kind}, margin {margin}, weight {weight}"


def _length(row: dict) -> str:
    return f"{row['epochs']} + {row['second_epochs']}" if row["second_epochs"] else str(row["epochs"])


def _short(settings: str, hidden: tuple[str, ...]) -> str:
    words = [word for word in settings.split() if word.partition("=")[0] not in hidden]
    return (
        " ".join(word.removeprefix("optimization.").removeprefix("encoder.options.") for word in words)
        or "defaults"
    )


def _mean(values: list[float | None]) -> str:
    return "" if None in values else f"{100 * statistics.mean(values):.1f}"


def _named(scores: tuple[str, ...]) -> list[str]:
    return [f"AUROC {score}" for score in scores]


def _head(*heads: str) -> list[str]:
    return [_line(*heads), f"|{'---|' * len(heads)}"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
