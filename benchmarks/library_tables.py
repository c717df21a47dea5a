"""Our scores and metrics next to those of other libraries, from benchmarks/results/other_libraries."""

from pathlib import Path

from pmal._runtime.files import read_json

RESULTS = Path(__file__).parent / "results" / "other_libraries"


def scores_table() -> str:
    """How far each score is from ours, in standard deviations of ours."""
    lines = [
        "| score | library | largest difference | rank correlation | our AUROC | its AUROC |",
        "|---|---|---|---|---|---|",
    ]
    for row in _rows("scores"):
        areas = " | ".join(f"{100 * row[key]:.2f}" for key in ("our_auroc", "their_auroc"))
        agreement = f"{_small(row['largest_difference'])} | {row['rank_correlation']:.4f}"
        lines.append(f"| {row['score']} | {row['library']} | {agreement} | {areas} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """Metrics of the largest logit."""
    lines = ["| metric | library | ours | its | difference |", "|---|---|---|---|---|"]
    for row in _rows("metrics"):
        values = " | ".join(f"{100 * row[key]:.2f}" for key in ("ours", "theirs"))
        lines.append(f"| {row['metric']} | {row['library']} | {values} | {_small(abs(row['difference']))} |")
    return "\n".join(lines)


def _rows(part: str) -> list[dict]:
    found = [row for file in sorted(RESULTS.glob("*.json")) for row in read_json(file)[part]]
    order = list(dict.fromkeys(row[part.removesuffix("s")] for row in found))
    return sorted(found, key=lambda row: order.index(row[part.removesuffix("s")]))


def _small(value: float) -> str:
    """Such as `3e-07`; 0 where it is the rounding of float64."""
    return "0" if value < 1e-12 else f"{value:.0e}" if value < 0.01 else f"{value:.3f}"


LIBRARY_TABLES = {"libraries scores": scores_table, "libraries metrics": metrics_table}
