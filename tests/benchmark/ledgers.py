"""Made-up records, and the smallest real cells there are."""

from pmal.benchmark.cells import make_cell
from pmal.benchmark.ledger import Ledger

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
    return {"cell": cell.about(), **figures, **first, "grid": grid}


def _scores(values):
    return {name: {"auroc": {"value": value}} for name, value in values.items()}


def made_up(folder, *records):
    from pmal.benchmark.cells import cell_of

    ledger = Ledger(folder)
    for one in records:
        ledger.write(cell_of(one), one)
    return ledger
