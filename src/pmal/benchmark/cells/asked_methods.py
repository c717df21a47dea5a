"""What the benchmark needs to know about a method. All of it comes from `pmal.methods`.

The score that a method rejects by is `rejection.building.default_score`. Every record contains it, and
tables read it from the record.
"""

from pmal.methods import METHODS

LONG, TOGETHER = "softmax-long", "softmax-ensemble"
"""Names in --methods: one softmax that costs as much as all trainings of PMAL, and several that share it."""
EQUAL_COST = (LONG, TOGETHER)

_EVERYWHERE = ("data", "encoder", "training", "rejection")
_OF_MINING = ("ensemble", "mining", "optimization")
_OF_EVERY_SECOND = ("optimization.epochs", "optimization.learning_rate")
"""Settings of a second training, with prototypes or without."""


def method_names() -> tuple[str, ...]:
    """Return the names that --methods takes."""
    return (*METHODS, *EQUAL_COST)


def concerns(method: str, setting: str) -> bool:
    """Return whether a setting can change the figures of a method.

    Settings that cannot are left out of the cell's name.

    >>> concerns("pmal", "mining.epsilon=0.5"), concerns("softmax", "mining.epsilon=0.5")
    (True, False)
    """
    section, known = setting.partition(".")[0], METHODS[method]
    if setting.partition("=")[0] in _OF_EVERY_SECOND:
        return known.second
    if section in _OF_MINING:
        return known.mines
    return section in _EVERYWHERE or known.head != "linear" or bool(known.final)


def is_trained_again(method: str) -> bool:
    """Return whether the network that answers has two trainings behind it."""
    # The ledger may hold methods that no longer exist; tables still show them.
    return method in METHODS and METHODS[method].second


def epochs_text(method: str, epochs: int, second: int = 0) -> str:
    """Return the length of each training, as tables show it.

    Args:
        method: its name.
        epochs: of the first training.
        second: of the second training. 0: as many as the first.

    >>> epochs_text("pmal", 100), epochs_text("pmal", 100, 300), epochs_text("softmax", 100)
    ('100 + 100', '100 + 300', '100')
    """
    return f"{epochs} + {second or epochs}" if is_trained_again(method) else str(epochs)
