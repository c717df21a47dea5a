"""Street View House Numbers, cropped digits: `train_32x32.mat` and `test_32x32.mat`, MATLAB version 5."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.memory import check_expansion
from pmal.data.samples import ArrayStore, Samples, Source
from pmal.errors import DataError, MissingFileError, first_line

SVHN_CLASSES = tuple("0123456789")


def open_svhn(folder: Path) -> Source:
    """Return the training and the test part; the additional `extra_32x32.mat` is no part of any protocol."""
    train, test = (_read_part(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return Source("svhn", train, test, digits=True)


def _read_part(path: Path) -> Samples:
    images, labels = _read_arrays(path)
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8 or not images.size:
        raise DataError(f"{path}: X is {images.dtype} {images.shape}, not uint8 images (32, 32, 3, N)")
    if labels.shape not in ((images.shape[3], 1), (1, images.shape[3])) or labels.dtype.kind not in "ui":
        raise DataError(f"{path}: y is {labels.dtype} {labels.shape}, not one label per image")
    labels = labels.ravel()
    wrong = np.flatnonzero((labels < 1) | (labels > 10))
    if wrong.size:
        raise DataError(f"{path}: label {labels[wrong[0]]} of image {wrong[0]}; SVHN's labels are 1 to 10")
    pixels = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    # MATLAB counts from 1, so the files call the digit zero 10.
    return Samples.whole(ArrayStore(str(path), pixels), labels % 10, SVHN_CLASSES)


def _read_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    from scipy.io import loadmat, whosmat  # takes a while, and only this source needs it

    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    try:
        declared = sum(math.prod(shape) for name, shape, _ in whosmat(path) if name in ("X", "y"))
        check_expansion(declared, path.stat().st_size, str(path))
        content = loadmat(path, variable_names=["X", "y"])
    except DataError:
        raise
    except Exception as error:  # a damaged file makes scipy's reader raise nearly anything
        reason = first_line(error)
        raise DataError(f"{path}: not a readable MATLAB 5 file ({reason}); fetch the file again") from error
    if "X" not in content or "y" not in content:
        raise DataError(f"{path}: holds no X and y, so it is not one of SVHN's cropped-digit files")
    return np.asarray(content["X"]), np.asarray(content["y"])
