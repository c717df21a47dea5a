"""Checks that several readers share."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pmal.errors import DataError


def check_labels(labels: NDArray[np.integer], classes: int, origin: str) -> None:
    """Reject a label outside 0 ... classes - 1, naming the first image that has one.

    >>> check_labels(np.array([0, 9, 10]), 10, "labels.idx")
    Traceback (most recent call last):
    pmal.errors.DataError: labels.idx: label 10 of image 2 is not in 0..9
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise DataError(f"{origin}: label {labels[wrong[0]]} of image {wrong[0]} is not in 0..{classes - 1}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that comes with a data set."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file; fetch it again") from error
