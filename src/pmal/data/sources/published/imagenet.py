"""ImageNet as `train/<wnid>` and `val/<wnid>` folders, and the list files of ImageNet-LT.

ImageNet-LT (Liu et al. 2019) has four lists of images, one `relative/path.JPEG label` a line: the long-tailed
training part, a balanced validation and test part, and the open set, whose images come from ILSVRC-2010.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pmal.data.samples import Ids, Samples, Source
from pmal.data.sources._refused import check_labels, read_lines
from pmal.data.sources.folder import FileStore, PathTable, samples_in
from pmal.errors import DataError

LT_TRAIN, LT_TEST, LT_OPEN = (f"ImageNet_LT_{part}.txt" for part in ("train", "test", "open"))


def open_imagenet(root: Path, name: str) -> Source:
    """Return both parts from class folders; a label is the rank of a training folder's name."""
    wnids = tuple(_class_folders(root / "train"))
    return Source(name, _read_part(root, "train", wnids), _read_part(root, "val", wnids))


def _class_folders(folder: Path) -> list[str]:
    entries = folder.iterdir() if folder.is_dir() else ()
    wnids = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not wnids:
        raise DataError(f"{folder}: holds no class folders; sort the images into one folder for each wnid")
    return wnids


def _read_part(root: Path, part: str, wnids: tuple[str, ...]) -> Samples:
    found = _class_folders(root / part)
    rank = {wnid: label for label, wnid in enumerate(wnids)}
    for wnid in found:
        if wnid not in rank:
            raise DataError(f"{root / part / wnid}: there is no training folder of this name")
    samples = samples_in(root, {f"{part}/{wnid}": rank[wnid] for wnid in found}, wnids)
    if not len(samples):
        raise DataError(f"{root / part}: its class folders hold no images")
    return samples


def open_imagenet_lt(lists: Path, trees: Sequence[Path]) -> Source:
    """Return ImageNet-LT by its lists; of the trees of images, the first that has them is used."""
    paths, labels = read_list(lists / LT_TRAIN)
    wnids = _wnids_of(paths, labels, lists / LT_TRAIN)
    train = Samples.whole(_listed(lists / LT_TRAIN, paths, trees), labels, wnids)
    paths, labels = read_list(lists / LT_TEST)
    check_labels(labels, len(wnids), str(lists / LT_TEST))
    test = Samples.whole(_listed(lists / LT_TEST, paths, trees), labels, wnids)
    return Source("imagenet-lt", train, test, _read_open_set(lists, trees))


def _read_open_set(lists: Path, trees: Sequence[Path]) -> Samples | None:
    """Return the open set. Its labels are -1 in the list: all images get the one class `open`."""
    if not (lists / LT_OPEN).is_file():
        return None
    paths, labels = read_list(lists / LT_OPEN)
    store = _listed(lists / LT_OPEN, paths, [lists / "ImageNet_LT_open", *trees])
    return Samples.whole(store, np.zeros_like(labels), ("open",))


def read_list(path: Path) -> tuple[list[str], Ids]:
    """Return the paths and labels of a list file; paths must stay below the folder of the images."""
    paths: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(read_lines(path), 1):
        name, _, label = line.rstrip().rpartition(" ")
        if not name or not label.removeprefix("-").isdecimal() or len(label) > 9:
            raise DataError(f"{path}: line {number} is not 'path label': {line[:80]!r}")
        if _escapes(name):
            raise DataError(f"{path}: line {number} leaves the image folder: {name[:80]!r}")
        paths.append(name)
        labels.append(int(label))
    if not paths:
        raise DataError(f"{path}: lists no images")
    return paths, np.array(labels, dtype=np.int64)


def _escapes(name: str) -> bool:
    """Return whether a path is absolute or leads upward; Windows paths count too, on every system."""
    if name.startswith(("/", "\\")) or name[1:2] == ":":
        return True
    return ".." in name and ".." in name.replace("\\", "/").split("/")


def _wnids_of(paths: list[str], labels: Ids, origin: Path) -> tuple[str, ...]:
    """Return the class names: the folders of the training images, one for each label."""
    folders = [path.rpartition("/")[0].rpartition("/")[2] for path in paths]
    pairs = sorted(set(zip(labels.tolist(), folders, strict=True)))
    names = tuple(folder for _, folder in pairs)
    if [label for label, _ in pairs] != list(range(len(pairs))) or len(set(names)) != len(names):
        raise DataError(f"{origin}: labels 0, 1, ... and the folders of the images do not match one to one")
    return names


def _listed(origin: Path, paths: list[str], trees: Sequence[Path]) -> FileStore:
    """Return the files below the tree that holds the first image; missing others show when they are read."""
    for tree in trees:
        if os.path.isfile(tree / paths[0]):
            return FileStore(os.path.abspath(tree), PathTable(paths))
    raise DataError(f"{origin}: {paths[0]} is in none of {', '.join(map(str, trees))}; put the images there")
