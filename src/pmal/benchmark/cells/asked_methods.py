"""What the benchmark asks of a method; all of it comes from `pmal.methods`.

The score that a method rejects by is `rejection.building.default_score`. It is written into every record, and
tables ask the record.
"""

from pmal.methods import METHODS

LONG, TOGETHER = "softmax-long", "softmax-ensemble"
"""In --methods: a softmax that costs as much as all trainings of PMAL, and several that do so together."""
EQUAL_COST = (LONG, TOGETHER)

_EVERYWHERE = ("data", "encoder", "training", "rejection")
_OF_MINING = ("ensemble", "mining", "optimization")


def method_names() -> tuple[str, ...]:
    """What --methods takes."""
    return (*METHODS, *EQUAL_COST)


def concerns(method: str, setting: str) -> bool:
    """Whether a setting can change the figures of a method. Others are left out of the cell's name.

    >>> concerns("pmal", "mining.epsilon=0.5"), concerns("softmax", "mining.epsilon=0.5")
    (True, False)
    """
    section, known = setting.partition(".")[0], METHODS[method]
    if section in _OF_MINING:
        return known.mines
    return section in _EVERYWHERE or known.head != "linear" or bool(known.final)


def is_trained_again(method: str) -> bool:
    """Return whether the network that answers has two trainings behind it."""
    # Tables show what is in the ledger, be it of a method that is no more.
    return method in METHODS and METHODS[method].second


def epochs_text(method: str, epochs: int, second: int = 0) -> str:
    """Return the length of each training, as tables show it. 0: the second is as long as the first.

    >>> epochs_text("pmal", 100), epochs_text("pmal", 100, 300), epochs_text("softmax", 100)
    ('100 + 100', '100 + 300', '100')
    """
    return f"{epochs} + {second or epochs}" if is_trained_again(method) else str(epochs)
