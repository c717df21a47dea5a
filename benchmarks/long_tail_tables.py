"""Methods on long-tailed draws, in the shape of the paper's Table 2, from the ledger."""

from pathlib import Path

from pmal.benchmark.cells.cell import ENSEMBLE, FIT
from pmal.benchmark.ledger import Ledger
from pmal.benchmark.rendering import entry_text
from pmal.benchmark.tables.groups import (
    Key,
    accuracy,
    auroc,
    average,
    group_results,
    main_results,
    mean_passes,
    splits_text,
)

RESULTS = Path(__file__).parent / "results"
SCORES = ("probability", "logit", "distance", "neighbors")
TAIL = "data.long_tail="


def is_long_tailed(key: Key) -> bool:
    """Whether a group is of a long-tailed draw, which is another problem than the whole set."""
    return any(setting.startswith(TAIL) for setting in key.settings)


def long_tail_table(folder: Path = RESULTS) -> str:
    """A row for each method and ratio; the draws are the splits."""
    heads = (
        "data, draws",
        "largest : smallest class",
        "method, epochs",
        "passes",
        "ACC",
        "AUROC by its own score",
    )
    lines = [f"| {' | '.join([*heads, *SCORES])} |", f"|{'---|' * (len(heads) + len(SCORES))}"]
    results, _ = Ledger(folder).results(FIT, ENSEMBLE)
    for key, found in group_results(main_results(results)).items():
        tail = [setting.removeprefix(TAIL) for setting in key.settings if setting.startswith(TAIL)]
        if tail:
            figures = [average(found, measure) for measure in (accuracy, auroc(None), *map(auroc, SCORES))]
            passes = mean_passes(found)
            cells = (
                f"{key.source}, {key.family} {splits_text(found)}",
                tail[0],
                f"{key.name}, {key.epochs_text}",
                "" if passes is None else f"{passes:.0f}",
                *("" if figure is None else entry_text(figure) for figure in figures),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


LONG_TAIL_TABLES = {"long tail": long_tail_table}
