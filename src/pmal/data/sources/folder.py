"""A folder of class folders: PATH/<class>/**, or PATH/train/<class>/** with PATH/test/<class>/**.

Instead of `test` the second part may be called `val`, `valid` or `validation`. PATH/train counts as a part,
and not as a class of that name, when it has folders in it.

Every file below a class folder is a sample, whatever it is called: what turns out to be no image is listed in
the quarantine with its reason, so that the counts add up. Hidden files and folders, and the droppings of
desktops, are no samples. A sample's id is the rank of its path among the sorted paths of its part.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pmal._runtime.text import printable
from pmal.data.decoding.decode import decode
from pmal.data.samples import BadImage, Pixels, Samples, Source
from pmal.errors import DataError, MissingFileError

_TEST_NAMES = ("test", "val", "valid", "validation")
_DROPPINGS = frozenset({"Thumbs.db", "desktop.ini"})

MAX_FILE_BYTES = 1 << 29
"""Larger than any image within the pixel limit; a file above it is not read into memory."""
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Reasons that say nothing about a file: without it, others would be trained on."""


class PathTable:
    """Very many paths in one piece: as strings a million of them would weigh 100 MB in every worker."""

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._bytes = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:
        begin, end = self._ends[range(len(self))[row] :][:2]
        return os.fsdecode(self._bytes[begin:end])


@dataclass(frozen=True)
class FileStore:
    """Images in files of their own: row i is `paths[i]` below `root`."""

    root: str | Path
    paths: PathTable | Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, row: int) -> str:
        return printable(os.path.join(self.root, self.paths[row]))

    def read(self, row: int) -> Pixels:
        return decode(self.encoded(row))

    def encoded(self, row: int) -> bytes:
        """Return the bytes of the file. Raises `BadImage`."""
        try:
            with open(os.path.join(self.root, self.paths[row]), "rb") as file:
                # Not more than the file has: room for all that is asked for is requested before it is read.
                data = file.read(min(MAX_FILE_BYTES, os.fstat(file.fileno()).st_size) + 1)
        except OSError as error:
            if error.errno in _OURS:
                raise
            raise BadImage(f"cannot be read: {error.strerror}") from error
        if len(data) > MAX_FILE_BYTES:
            raise BadImage(f"larger than {MAX_FILE_BYTES >> 20} MiB")
        return data


def open_folder(path: str | Path) -> Source:
    """Return the data set in a folder of class folders."""
    source = read_folder(path)
    train = source.train
    empty = sorted(set(range(len(train.class_names))) - set(train.labels.tolist()))
    if empty:
        folder, name = _part_folders(Path(os.path.abspath(path)))[0], train.class_names[empty[0]]
        raise DataError(f"{folder}: class {name!r} has no files: add images or remove the folder")
    if source.faults:
        raise DataError(source.faults[0])
    return source


def read_folder(path: str | Path) -> Source:
    """Return the data set in a folder of class folders, also with empty classes.

    What is wrong with the test part comes back in `faults`.
    """
    folder = Path(os.path.abspath(path))
    _check_is_folder(folder)
    train_folder, test_folder = _part_folders(folder)
    train = _read_part(train_folder)
    loose = _loose(train_folder)
    if test_folder is None:
        return Source(folder.name, train, loose=loose)
    faults: list[str] = []
    test = _read_test_part(train, test_folder, faults)
    loose += _loose(test_folder)
    return Source(folder.name, train, test, loose=loose, faults=tuple(faults))


def samples_in(root: Path, label_of: Mapping[str, int], class_names: tuple[str, ...]) -> Samples:
    """Return the files in folders below the root by their sorted paths, each with the label of its folder."""
    pairs = sorted(
        (f"{folder}/{file}", label)
        for folder, label in label_of.items()
        for file in list_files(root / folder)
    )
    labels: NDArray[np.int64] = np.array([label for _, label in pairs], dtype=np.int64)
    store = FileStore(os.path.abspath(root), PathTable(path for path, _ in pairs))
    return Samples.whole(store, labels, class_names)


def holds_samples_at(folder: Path, inside: Path) -> bool:
    """Return whether files at the path `inside` are, or would be, samples of the folder's data set."""
    if not folder.is_dir():
        return False
    train, test = _part_folders(folder)
    parts = [folder] if test is None else [train, test]
    return any(inside.resolve().is_relative_to(part.resolve()) for part in parts)


def list_files(folder: str | Path) -> list[str]:
    """Return the sorted paths of all samples, relative to the folder and with "/" between their parts.

    Links to files and folders are followed, but no folder is entered twice: a loop of links ends there.
    Nor is a folder entered that this one lies in: its other folders are other classes. A link that leads
    nowhere is listed, because its image is missing.
    """
    found: list[str] = []
    entered = {_identity(above) for above in Path(folder).resolve().parents}
    waiting = [("", os.fspath(folder))]
    while waiting:
        prefix, current = waiting.pop()
        with _scan(current) as entries:
            if (identity := _identity(current)) in entered:
                continue
            entered.add(identity)
            folders = []
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _DROPPINGS:
                    continue
                if entry.is_dir():
                    folders.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.is_file() or _leads_nowhere(entry):
                    found.append(prefix + entry.name)
        waiting.extend(sorted(folders, reverse=True))
    return sorted(found)


def list_droppings(folder: Path) -> tuple[str, ...]:
    """Return files of desktops anywhere below the folder.

    Links are not followed: the files are only counted.
    """
    found = (
        Path(place) / name for place, _, names in os.walk(folder) for name in names if name in _DROPPINGS
    )
    return tuple(sorted(printable(str(file)) for file in found))


def _check_is_folder(folder: Path) -> None:
    if not folder.exists():
        raise MissingFileError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder: give the folder that holds one folder per class")


def _part_folders(folder: Path) -> tuple[Path, Path | None]:
    train = folder / "train"
    if not train.is_dir() or not _folder_names(train):
        return folder, None
    test = next((folder / name for name in _TEST_NAMES if (folder / name).is_dir()), None)
    if test is None and _folder_names(folder) != ["train"]:
        return folder, None
    return train, test


def _read_part(folder: Path) -> Samples:
    classes = _folder_names(folder)
    if not classes:
        fix = "give the folder that holds one folder of images per class"
        raise DataError(f"{folder}: {'no class folders in it' if any(folder.iterdir()) else 'empty'}: {fix}")
    labels = {name: label for label, name in enumerate(classes)}
    return samples_in(folder, labels, tuple(printable(name) for name in classes))


def _read_test_part(train: Samples, folder: Path, faults: list[str]) -> Samples | None:
    """Return the test part with the training part's class numbers; add what is wrong with it to faults."""
    try:
        test = _read_part(folder)
    except DataError as error:
        faults.append(str(error))
        return None
    unknown = [name for name in test.class_names if name not in train.class_names]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (" ..." if len(unknown) > 5 else "")
        faults.append(
            f"{folder}: {len(unknown)} classes are not in the training part ({shown}): "
            "add them there or remove these folders"
        )
    elif not len(test):
        faults.append(f"{folder}: no files in its class folders: add images or remove the folder")
    rank = {name: label for label, name in enumerate(train.class_names)}
    to_train: NDArray[np.int64] = np.array([rank.get(name, -1) for name in test.class_names], dtype=np.int64)
    labels = to_train[test.labels]
    known = labels >= 0
    return Samples(test.store, test.ids[known], labels[known], train.class_names) if known.any() else None


def _folder_names(folder: Path) -> list[str]:
    with _scan(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _loose(folder: Path) -> tuple[str, ...]:
    with _scan(folder) as entries:
        files = (e for e in entries if not e.is_dir() and not e.name.startswith("."))
        return tuple(sorted(printable(e.path) for e in files if e.name not in _DROPPINGS))


def _scan(folder: str | Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    try:
        return os.scandir(os.fspath(folder))
    except OSError as error:
        raise DataError(f"{printable(str(folder))}: cannot be listed: {error.strerror}") from None


def _identity(folder: str | Path) -> tuple[int, int]:
    """Return what is the same for all paths to a folder."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)
