"""What the benchmark asks of a method; all of it comes from `pmal.methods`.

The score that a method rejects by is `rejection.building.default_score`. It is written into every record, and
tables ask the record.
"""

from pmal.methods import METHODS

LONG = "softmax-long"
"""In --methods: softmax of twice the epochs, as long as a method that trains a second time."""

_EVERYWHERE = ("data", "encoder", "training", "rejection")
_OF_MINING = ("ensemble", "mining", "optimization")


def method_names() -> tuple[str, ...]:
    """What --methods takes."""
    return (*METHODS, LONG)


def concerns(method: str, setting: str) -> bool:
    """Whether a setting can change the figures of a method. Others are left out of the cell's name.

    >>> concerns("pmal", "mining.epsilon=0.5"), concerns("softmax", "mining.epsilon=0.5")
    (True, False)
    """
    section, known = setting.partition(".")[0], METHODS[method]
    if section in _OF_MINING:
        return known.mines
    return section in _EVERYWHERE or known.head != "linear" or bool(known.final)


def total_epochs(method: str, epochs: int) -> int:
    """Epochs behind the network that answers: what an equally long softmax has.

    >>> total_epochs("pmal", 100), total_epochs("softmax", 100)
    (200, 100)
    """
    return epochs * (2 if _is_trained_again(method) else 1)


def epochs_text(method: str, epochs: int) -> str:
    return f"{epochs} + {epochs}" if _is_trained_again(method) else str(epochs)


def _is_trained_again(method: str) -> bool:
    # Tables show what is in the ledger, be it of a method that is no more.
    return method in METHODS and METHODS[method].second
