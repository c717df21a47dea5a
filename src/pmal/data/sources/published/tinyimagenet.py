"""TinyImageNet's official tree, `tiny-imagenet-200`. Labels are the ranks of the wnids in sorted order."""

import os
from pathlib import Path

import numpy as np

from pmal._runtime.text import printable
from pmal.data.samples import Samples, Source
from pmal.data.sources._refused import read_lines
from pmal.data.sources.folder import FileStore, PathTable, list_files, samples_in
from pmal.errors import DataError, MissingFileError


def open_tinyimagenet(root: Path) -> Source:
    """Return the training and the validation part, which every protocol tests on: `test/` has no labels."""
    wnids = _read_wnids(root / "wnids.txt")
    return Source("tinyimagenet", _read_train(root, wnids), _read_val(root, wnids))


def _read_wnids(path: Path) -> tuple[str, ...]:
    wnids = sorted({line.strip() for line in read_lines(path)} - {""})
    if not wnids:
        raise DataError(f"{path}: lists no classes")
    return tuple(wnids)


def _read_train(root: Path, wnids: tuple[str, ...]) -> Samples:
    """Return the training part. A class may lack images: it matters only if the class is chosen as known."""
    label_of = {f"train/{wnid}/images": label for label, wnid in enumerate(wnids)}
    there = {folder: label for folder, label in label_of.items() if (root / folder).is_dir()}
    samples = samples_in(root, there, wnids)
    if not len(samples):
        raise DataError(f"{root / 'train'}: holds no <wnid>/images/*.JPEG of the classes in wnids.txt")
    return samples


def _read_val(root: Path, wnids: tuple[str, ...]) -> Samples:
    annotations = root / "val" / "val_annotations.txt"
    label_of = _read_annotations(annotations, wnids)
    folder = root / "val" / "images"
    if not folder.is_dir():
        raise MissingFileError(f"{folder}: no such folder")
    images = list_files(folder)
    _refuse_any(annotations, "no line for", set(images) - set(label_of))
    if not images:
        raise DataError(f"{folder}: holds no images")
    _refuse_any(annotations, f"no file in {folder} for", set(label_of) - set(images))
    labels = np.array([label_of[image] for image in images])
    paths = (f"val/images/{image}" for image in images)
    return Samples.whole(FileStore(os.path.abspath(root), PathTable(paths)), labels, wnids)


def _read_annotations(path: Path, wnids: tuple[str, ...]) -> dict[str, int]:
    """Return image names with their labels; a line is the name, the wnid and the four numbers of a box."""
    rank = {wnid: label for label, wnid in enumerate(wnids)}
    label_of: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        image, wnid = (*line.split("\t"), "")[:2]
        if wnid not in rank:
            raise DataError(f"{path}: line {number} names no class of wnids.txt: {line[:80]!r}")
        if label_of.setdefault(image, rank[wnid]) != rank[wnid]:
            raise DataError(f"{path}: line {number} gives {image} a second class")
    return label_of


def _refuse_any(origin: Path, problem: str, images: set[str]) -> None:
    if images:
        some = ", ".join(map(printable, sorted(images)[:5])) + (" ..." if len(images) > 5 else "")
        raise DataError(f"{origin}: {problem} {len(images)} images: {some}; unpack the archive again")
