"""Made-up records, and the smallest real cells there are."""

from pmal.benchmark.cells.cell import FLUCTUATION, make_cell
from pmal.benchmark.ledger import Ledger
from pmal.config import to_settings

TINY = (
    "data.limit=40",
    "data.image_size=12",
    "data.augmentation=none",
    "training.batch_size=32",
    "mining.per_class=3",
    "mining.quality=probability",  # topology would be compiled first
)


def tiny(method="softmax", *, seed=0, epochs=1, settings=()):
    """A cell on the embedded sample that takes a second."""
    words = {"recipe": "sample", "epochs": epochs, "settings": (*TINY, *settings)}
    return make_cell(method, "sample", "arpl", 0, seed, **words)


def options(*words):
    """The same for the command line."""
    return [*words, "--epochs", "1", *(word for text in TINY for word in ("--set", text))]


def record(cell, accuracy=0.9, *, softmax=None, grid=None, **scores):
    """What the ledger would hold of a cell with these figures."""
    figures = {
        "accuracy": {"value": accuracy},
        "scores": {name: {"auroc": {"value": value}} for name, value in scores.items()},
    }
    first = {} if softmax is None else {"softmax": {**figures, "scores": _scores(softmax)}}
    return {"cell": cell.about(), **about(cell), **figures, **first, "grid": grid}


def about(cell, known_classes=6):
    """What a run would say of itself."""
    config = cell.config()
    phases = {"optimization": to_settings(config.optimization)} if cell.method == "pmal" else {}
    return {"about": {"known_classes": known_classes, "classifiers": config.classifiers, **phases}}


def _scores(values):
    return {name: {"auroc": {"value": value}} for name, value in values.items()}


def made_up(folder, *records):
    from pmal.benchmark.cells.cell import cell_of

    ledger = Ledger(folder)
    for one in records:
        ledger.write(cell_of(one), one)
    return ledger


def grid_records(source="tinyimagenet", splits=(0, 1, 2), grids=("table3", "table4", "table5", "lambda")):
    """Every variant of the paper's ablations, with figures that differ by variant and by split."""
    from pmal.benchmark.ablations import GRIDS

    for grid in grids:
        for sweep in GRIDS[grid]:
            for i, variant in enumerate(sweep.variants):
                for split in splits:
                    words = {"recipe": "strong", "epochs": 100, "settings": variant.settings}
                    cell = make_cell("pmal", source, "arpl", split, 0, **words)
                    level = 0.8 + 0.01 * split + 0.008 * min(i, 3) - 0.002 * i
                    scores = {"distance": level, "probability": level - 0.03, "logit": level + 0.02}
                    usual = cell.settings == ()
                    yield record(cell, level + 0.05, grid=None if usual else grid, **scores)


def mining_record(split=0, source="cifar10", family="arpl"):
    """What the grid `fluctuation` leaves."""
    words = {"recipe": "strong", "epochs": 100, "settings": ["ensemble.size=6"], "measure": FLUCTUATION}
    figures = {"minings": 3, "share_equal": 0.25 + split / 10, "distance_to_nearest": 0.125}
    cell = make_cell("pmal", source, family, split, 0, **words)
    return {"cell": cell.about(), **figures, "distance_by_chance": 0.5, "per_class": 10}
