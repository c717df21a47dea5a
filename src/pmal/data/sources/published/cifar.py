"""CIFAR-10 and CIFAR-100 as published: the Python or the binary version, unpacked or as the archive."""

import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from pmal.data.samples import ArrayStore, Ids, Pixels, Samples, Source
from pmal.data.sources._refused import check_labels
from pmal.data.sources.published._unpickle import unpickle_arrays
from pmal.errors import DataError

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR10_CLASSES = tuple(_CIFAR10.split())
CIFAR100_CLASSES = tuple(_CIFAR100.split())

_VALUES = 3 * 32 * 32
_MOST_BYTES = 256 * 2**20
"""The largest official file has 155 MB; no more than this is unpacked from an archive member."""

Part = tuple[Pixels, Ids]


@dataclass(frozen=True)
class _Layout:
    """One published version: its folder, the files of both parts, and how to read them."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    parse: Callable[[bytes, str], Part]
    parse_names: Callable[[bytes, str], tuple[str, ...]]


def open_cifar10(path: Path) -> Source:
    """Return CIFAR-10 from the folder that holds the batches, or from the archive."""
    return _open("cifar10", path, _LAYOUTS_10, CIFAR10_CLASSES)


def open_cifar100(path: Path) -> Source:
    """Return CIFAR-100 with its fine labels, from the folder that holds its files, or from the archive."""
    return _open("cifar100", path, _LAYOUTS_100, CIFAR100_CLASSES)


def read_cifar100_test(path: Path) -> Samples:
    """Return only the test part: the unknown images of CIFAR+10 and CIFAR+50."""
    layout = _layout_of(path, _LAYOUTS_100)
    found = _read_files(path, layout, layout.test, CIFAR100_CLASSES)
    return _joined([found[name] for name in layout.test], f"{path} test", CIFAR100_CLASSES)


def _open(name: str, path: Path, layouts: tuple[_Layout, ...], class_names: tuple[str, ...]) -> Source:
    layout = _layout_of(path, layouts)
    found = _read_files(path, layout, layout.train + layout.test, class_names)
    train = _joined([found[file] for file in layout.train], f"{path} train", class_names)
    test = _joined([found[file] for file in layout.test], f"{path} test", class_names)
    return Source(name, train, test)


def _read_files(
    path: Path, layout: _Layout, files: tuple[str, ...], class_names: tuple[str, ...]
) -> dict[str, Part]:
    """Return all files, read in one pass because an archive is a stream."""
    found: dict[str, Part] = {}
    for name, data in _members(path, layout.folder, {*files, layout.names}):
        origin = f"{path}/{name}"
        if name == layout.names:
            names = layout.parse_names(data, origin)
            if names != class_names:  # their labels would mean another data set
                raise DataError(
                    f"{origin}: its {len(names)} class names are not the official {len(class_names)}"
                )
        else:
            found[name] = layout.parse(data, origin)
            check_labels(found[name][1], len(class_names), origin)
    missing = [name for name in files if name not in found]
    if missing:
        raise DataError(f"{path}: {', '.join(missing)} missing; fetch the archive again")
    return found


def _joined(parts: list[Part], origin: str, class_names: tuple[str, ...]) -> Samples:
    pixels = np.concatenate([pixels for pixels, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])
    return Samples.whole(ArrayStore(origin, pixels), labels, class_names)


def _layout_of(path: Path, layouts: tuple[_Layout, ...]) -> _Layout:
    """Return the layout: a folder is identified by its test file, an archive by its own name."""
    for layout in layouts:
        kind = "binary" if layout.test[0].endswith(".bin") else "python"
        if (path / layout.test[0]).is_file() or (path.is_file() and kind in path.name):
            return layout
    wanted = " or ".join(layout.test[0] for layout in layouts)
    raise DataError(f"{path}: holds no {wanted}, so it is not an official CIFAR folder or archive")


def _members(path: Path, folder: str, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of a folder, or of an archive without unpacking it to disk."""
    try:
        if path.is_dir():
            for name in sorted(wanted):
                if (path / name).is_file():
                    with (path / name).open("rb") as file:
                        yield name, _bounded(file, f"{path}/{name}")
            return
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                parent, _, name = member.name.removeprefix("./").rpartition("/")
                if member.isfile() and parent == folder and name in wanted:
                    content = archive.extractfile(member)
                    yield name, _bounded(content, f"{path}/{name}")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error


def _bounded(file: IO[bytes] | None, origin: str) -> bytes:
    data = file.read(_MOST_BYTES + 1) if file else b""
    if len(data) > _MOST_BYTES:
        raise DataError(f"{origin}: larger than any official CIFAR file")
    return data


def _parse_pickled(label_key: str, data: bytes, origin: str) -> Part:
    content = unpickle_arrays(data, origin)
    rows, labels = content.get("data"), content.get(label_key)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != _VALUES or not len(rows):
        raise DataError(f"{origin}: 'data' is not an array of images of {_VALUES} values each")
    if not isinstance(labels, list) or not all(type(k) is int and 0 <= k < 256 for k in labels):
        raise DataError(f"{origin}: '{label_key}' is not a list of class numbers")
    if len(labels) != len(rows):
        raise DataError(f"{origin}: {len(labels)} labels for {len(rows)} images")
    return _to_images(rows), np.array(labels, dtype=np.int64)


def _parse_binary(label_bytes: int, data: bytes, origin: str) -> Part:
    """Return what records hold: one label byte (CIFAR-100: a coarse, then a fine one) and the values."""
    size = label_bytes + _VALUES
    if not data or len(data) % size:
        raise DataError(f"{origin}: {len(data)} bytes are not whole records of {size}; fetch it again")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    return _to_images(records[:, label_bytes:]), records[:, label_bytes - 1].astype(np.int64)


def _to_images(rows: Pixels) -> Pixels:
    """Return images (N, 32, 32, 3) from rows that hold the red plane, then green, then blue."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _pickled_names(key: str, data: bytes, origin: str) -> tuple[str, ...]:
    names = unpickle_arrays(data, origin).get(key)
    words = names if isinstance(names, list) else []
    return tuple(word.decode("latin1") for word in words if isinstance(word, bytes))


def _text_names(data: bytes, origin: str) -> tuple[str, ...]:
    return tuple(data.decode("latin1").split())


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_LAYOUTS_10 = (
    _Layout(
        folder="cifar-10-batches-py",
        train=_BATCHES,
        test=("test_batch",),
        names="batches.meta",
        parse=partial(_parse_pickled, "labels"),
        parse_names=partial(_pickled_names, "label_names"),
    ),
    _Layout(
        folder="cifar-10-batches-bin",
        train=tuple(f"{batch}.bin" for batch in _BATCHES),
        test=("test_batch.bin",),
        names="batches.meta.txt",
        parse=partial(_parse_binary, 1),
        parse_names=_text_names,
    ),
)
_LAYOUTS_100 = (
    _Layout(
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        names="meta",
        parse=partial(_parse_pickled, "fine_labels"),
        parse_names=partial(_pickled_names, "fine_label_names"),
    ),
    _Layout(
        folder="cifar-100-binary",
        train=("train.bin",),
        test=("test.bin",),
        names="fine_label_names.txt",
        parse=partial(_parse_binary, 2),
        parse_names=_text_names,
    ),
)
