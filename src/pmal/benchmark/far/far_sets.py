"""Other sets that a model can be tested on: those on this disk, without its own set and its classes."""

import os
from collections.abc import Sequence

import numpy as np

from pmal.data.samples import Samples, evenly
from pmal.data.sources.readers import DATA_ROOT_VARIABLE, is_named, open_test_samples
from pmal.errors import DataError

FAR_SETS = ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100", "tinyimagenet", "photos")
_SAME = (
    ("sample", "mnist"),
    ("cifar10", "cifar+10", "cifar+50"),
    ("imagenet-100", "imagenet-200", "imagenet-lt"),
)
"""Groups of names of sets that contain the same images."""


def open_far_set(
    name: str, own: str, known: Sequence[str], data_root: str | None, most: int
) -> tuple[Samples | None, str]:
    """Return evenly spaced images of a set, and a line about what is left out. None: all of it is.

    Args:
        name: a named set or a folder.
        own: the set that the model was trained on, which is not far.
        known: its classes. A class of the same name is not unknown and is left out.
        data_root: folder of the data sets.
        most: number of images at most.
    """
    if _kind(name) == _kind(own):
        return None, f"{name} is left out: the model was trained on images of this kind ({own})"
    try:
        samples = open_test_samples(_place(name, data_root), data_root)
    except DataError as error:
        return None, f"{name} is left out: {error}"
    same = [k for k, class_name in enumerate(samples.class_names) if class_name in set(known)]
    line = f"{name}: without its {len(same)} classes that have the name of a known one" if same else ""
    samples = samples.at(~np.isin(samples.labels, same))
    if not len(samples):
        return None, f"{name} is left out: all of its classes have names of known ones"
    return samples.at(evenly(len(samples), most)), line


def _kind(name: str) -> str:
    return next((same[0] for same in _SAME if name in same), name)


def _place(name: str, data_root: str | None) -> str:
    """Return the name or path to open. Photos are a folder of class folders in the data root."""
    if is_named(name) or os.sep in name:
        return name
    root = data_root or os.environ.get(DATA_ROOT_VARIABLE) or "."
    return os.path.join(os.path.expanduser(root), name)  # not a Path, which would drop the leading "./"
