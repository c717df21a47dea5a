"""CIFAR's files, written as Python 2 wrote them, opcode by opcode."""

import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from pmal.data.samples import Samples
from pmal.data.sources.published.cifar import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
)


class Python2Pickle:
    """Writes what Python 2's cPickle wrote: byte strings by STRING opcodes, arrays by numpy's globals."""

    def __init__(self, protocol: int) -> None:
        self.protocol = protocol

    def dumps(self, value: object) -> bytes:
        return (b"\x80\x02" if self.protocol == 2 else b"") + self.encode(value) + b"."

    def encode(self, value: object) -> bytes:
        match value:
            case bool():
                return b"I01\n" if value else b"I00\n"
            case int():
                return b"I%d\n" % value
            case bytes() if self.protocol == 2:
                return b"T" + struct.pack("<i", len(value)) + value
            case bytes():
                return b"S" + repr(value)[1:].encode() + b"\n"
            case tuple():
                return b"(" + b"".join(map(self.encode, value)) + b"t"
            case list():
                return b"(l" + b"".join(self.encode(item) + b"a" for item in value)
            case dict():
                return b"(d" + b"".join(self.encode(k) + self.encode(v) + b"s" for k, v in value.items())
            case np.ndarray():
                return self._array(value)
        raise TypeError(type(value))

    def _array(self, array: np.ndarray) -> bytes:
        by_column = array.flags.f_contiguous and not array.flags.c_contiguous
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + self.encode((0,)) + b"S'b'\ntR"
        code = array.dtype.str[1:].encode()
        dtype = b"cnumpy\ndtype\n" + self.encode((code, 0, 1)) + b"R"
        dtype += self.encode((3, b"|", -1, -1, 0)) + b"b"
        shape, raw = self.encode(array.shape), self.encode(array.tobytes("F" if by_column else "C"))
        return made + b"(I1\n" + shape + dtype + self.encode(bool(by_column)) + raw + b"tb"


def make_rows(count: int, classes: int, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return rows, rng.integers(0, classes, count).tolist()


def cifar10_files(protocol: int = 2) -> dict[str, bytes]:
    dumps = Python2Pickle(protocol).dumps
    files = {"batches.meta": dumps({b"label_names": [n.encode() for n in CIFAR10_CLASSES], b"num_vis": 3072})}
    for seed, name in enumerate(
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]
    ):
        rows, labels = make_rows(3, 10, seed)
        files[name] = dumps({b"data": rows, b"labels": labels, b"batch_label": b"training batch"})
    rows, labels = make_rows(4, 10, 9)
    files["test_batch"] = dumps({b"data": rows, b"labels": labels, b"filenames": [b"a.png"] * 4})
    return files


def cifar100_files() -> dict[str, bytes]:
    dumps = Python2Pickle(2).dumps
    names = [name.encode() for name in CIFAR100_CLASSES]
    files = {"meta": dumps({b"fine_label_names": names, b"coarse_label_names": [b"fish"]})}
    for part, count, seed in (("train", 6, 0), ("test", 4, 9)):
        rows, fine = make_rows(count, 100, seed)
        files[part] = dumps({b"data": rows, b"fine_labels": fine, b"coarse_labels": [0] * count})
    return files


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_archive(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in sorted(files.items(), reverse=True):  # the order in an archive means nothing
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def assert_is(samples: Samples | None, rows: np.ndarray, labels: list[int]) -> None:
    """Compared pixel by pixel through the published formula: red plane, green plane, blue plane."""
    assert samples is not None
    assert samples.labels.tolist() == labels
    for i, row in enumerate(rows):
        pixels = samples.read(i)
        assert pixels.shape == (32, 32, 3)
        for y, x, c in ((0, 0, 0), (0, 31, 1), (31, 0, 2), (7, 19, 1)):
            assert pixels[y, x, c] == row[1024 * c + 32 * y + x]


def assert_is_cifar10(source) -> None:
    parts = [make_rows(3, 10, seed) for seed in range(5)]
    assert_is(source.train, np.concatenate([r for r, _ in parts]), [label for _, ls in parts for label in ls])
    assert_is(source.test, *make_rows(4, 10, 9))
    assert (source.name, source.train.class_names) == ("cifar10", CIFAR10_CLASSES)
