"""CIFAR's files are written here as Python 2 wrote them, opcode by opcode, or as binary records."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pmal.data.sources.published import cifar
from pmal.data.sources.published._unpickle import unpickle_arrays
from pmal.data.sources.published.cifar import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    open_cifar10,
    open_cifar100,
    read_cifar100_test,
)
from pmal.errors import DataError, Interrupted
from tests.data.sources.published.cifar_files import (
    Python2Pickle,
    assert_is,
    assert_is_cifar10,
    cifar10_files,
    cifar100_files,
    make_rows,
    write,
    write_archive,
)


def records(count: int, classes: int, seed: int, label_bytes: int) -> bytes:
    rows, labels = make_rows(count, classes, seed)
    coarse = b"\x07" * (label_bytes - 1)
    return b"".join(coarse + bytes([label]) + row.tobytes() for row, label in zip(rows, labels, strict=True))


def refusal(read, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("protocol", [0, 2])
def test_cifar10_python_folder(tmp_path, protocol):
    assert_is_cifar10(open_cifar10(write(tmp_path, cifar10_files(protocol))))


def test_cifar10_python_archive(tmp_path):
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files())
    assert_is_cifar10(open_cifar10(path))


@pytest.mark.parametrize("named", [True, False])
def test_cifar10_binary(tmp_path, named):
    files = {f"data_batch_{i + 1}.bin": records(3, 10, i, 1) for i in range(5)}
    files["test_batch.bin"] = records(4, 10, 9, 1)
    if named:
        files["batches.meta.txt"] = "\n".join([*CIFAR10_CLASSES, "", ""]).encode()
    assert_is_cifar10(open_cifar10(write(tmp_path / "folder", files)))
    archive = write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    assert_is_cifar10(open_cifar10(archive))


def test_cifar100_python(tmp_path):
    path = write(tmp_path, cifar100_files())
    source = open_cifar100(path)
    assert_is(source.train, *make_rows(6, 100, 0))
    assert_is(source.test, *make_rows(4, 100, 9))
    assert_is(read_cifar100_test(path), *make_rows(4, 100, 9))
    assert source.train.class_names == CIFAR100_CLASSES


def test_cifar100_binary_takes_the_fine_label(tmp_path):
    names = "\n".join(CIFAR100_CLASSES).encode()
    files = {
        "train.bin": records(6, 100, 0, 2),
        "test.bin": records(4, 100, 9, 2),
        "fine_label_names.txt": names,
    }
    source = open_cifar100(write(tmp_path, files))
    assert_is(source.train, *make_rows(6, 100, 0))
    assert_is(source.test, *make_rows(4, 100, 9))


def test_the_test_part_needs_no_training_part(tmp_path):
    files = cifar100_files()
    del files["train"]
    path = write(tmp_path, files)
    assert len(read_cifar100_test(path)) == 4
    assert "train missing" in refusal(open_cifar100, path)


def test_an_array_that_was_stored_by_columns(tmp_path):
    rows, labels = make_rows(4, 10, 9)
    files = cifar10_files()
    files["test_batch"] = Python2Pickle(2).dumps({b"data": np.asfortranarray(rows), b"labels": labels})
    assert_is(open_cifar10(write(tmp_path, files)).test, rows, labels)


MALICIOUS = {
    "os.system": b"cos\nsystem\n(S'touch HERE'\ntR.",
    "posix.system": b"cposix\nsystem\n(S'touch HERE'\ntR.",
    "__builtin__.eval": b'c__builtin__\neval\n(S\'open("HERE", "w")\'\ntR.',
    "builtins.eval": b'cbuiltins\neval\n(S\'open("HERE", "w")\'\ntR.',
    "builtins.getattr": b"cbuiltins\ngetattr\n(I1\nS'x'\ntR.",
    "subprocess.Popen": b"(S'touch HERE'\nisubprocess\nPopen\n.",
    "numpy.load": b"cnumpy\nload\n(S'HERE'\ntR.",
    "numpy.core.multiarray.fromfile": b"cnumpy.core.multiarray\nfromfile\n.",
    "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
    "numpy.dtype.__class__": b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.",
    "_codecs.encode": b"\x80\x04\x8c\x07_codecs\x8c\x06encode\x93.",
    "os\\x1b[2J\\n.system": b"\x80\x04\x8c\x07os\x1b[2J\n\x8c\x06system\x93.",
    "copy_reg._reconstructor": b"ccopy_reg\n_reconstructor\n.",
}


@pytest.mark.parametrize(("wanted", "data"), MALICIOUS.items(), ids=list(MALICIOUS))
@pytest.mark.parametrize("inside", ["test_batch", "batches.meta"])
def test_a_malicious_pickle_is_refused_by_name(tmp_path, monkeypatch, wanted, data, inside):
    monkeypatch.chdir(tmp_path)
    data = data.replace(b"HERE", b"trace")
    path = write(tmp_path / "set", {**cifar10_files(), inside: data})
    message = refusal(open_cifar10, path)
    assert f"the forbidden global '{wanted}'" in message
    assert f"{path}/{inside}" in message
    assert not (tmp_path / "trace").exists()


def test_a_malicious_archive_is_refused(tmp_path):
    files = {**cifar10_files(), "data_batch_3": MALICIOUS["os.system"]}
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    assert "forbidden global 'os.system'" in refusal(open_cifar10, path)


@pytest.mark.parametrize(
    ("array", "state"),
    [
        ("object", b"(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\nI0\nI1\ntRI00\n(lNatb"),
        ("float", b"(I1\n(I1\ntcnumpy\ndtype\n(S'f8'\nI0\nI1\ntRI00\nS'12345678'\ntb"),
        ("too short", b"(I1\n(I9\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'12345678'\ntb"),
        ("negative", b"(I1\n(I-1\nI-8\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'12345678'\ntb"),
        ("floats that fill it", b"(I1\n(I8\ntcnumpy\ndtype\n(S'f8'\nI0\nI1\ntRI00\nS'12345678'\ntb"),
        ("no number", b"(I1\n(S'x'\nI8\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'12345678'\ntb"),
        ("no bytes", b"(I1\n(I1\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\n(lI1\natb"),
        ("no tuple", b"I1\nb"),
    ],
)
def test_only_arrays_of_plain_bytes_are_rebuilt(array, state):
    start = b"(dS'data'\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    with pytest.raises(DataError, match="it asks for an array") as caught:
        unpickle_arrays(start + state + b"s.", "batch")
    assert ("'O8'" in str(caught.value)) == (array == "object")


def test_a_pickle_cannot_change_the_stand_ins():
    """BUILD with a pair sets attributes, also on a class, unless that class takes states itself."""
    for name in (b"ndarray", b"dtype"):
        with pytest.raises(DataError):
            unpickle_arrays(b"cnumpy\n" + name + b"\n(N(dS'code'\nS'O8'\nstb.", "batch")
    rows, _ = make_rows(2, 10, 0)
    content = unpickle_arrays(Python2Pickle(2).dumps({b"data": rows}), "batch")
    np.testing.assert_array_equal(content["data"], rows)


def test_keys_that_are_no_text_are_passed_over():
    assert unpickle_arrays(Python2Pickle(2).dumps({1: 2, b"a": 3}), "batch") == {"a": 3}


def test_an_interruption_is_no_fault_of_the_file(monkeypatch):
    def stop(*_):
        raise Interrupted(2, "interrupted")

    monkeypatch.setattr("pmal.data.sources.published._unpickle._ArrayStandIn.__setstate__", stop)
    with pytest.raises(Interrupted):
        unpickle_arrays(Python2Pickle(2).dumps({b"data": make_rows(2, 10, 0)[0]}), "batch")


def test_a_long_name_is_cut_in_the_refusal():
    with pytest.raises(DataError) as caught:
        unpickle_arrays(b"cos\n" + b"x" * 10_000 + b"\n.", "batch")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("data", [b"", b".", b"(", b"hello", b"\x80\x02]q\x00.", b"P1\n.", b"\x82\x01."])
def test_what_is_no_pickled_dictionary_is_refused(data):
    with pytest.raises(DataError, match=r"^batch: ") as caught:
        unpickle_arrays(data, "batch")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_off_pickle_is_refused(tmp_path, share):
    files = cifar10_files()
    files["data_batch_2"] = files["data_batch_2"][: int(share * len(files["data_batch_2"]))]
    assert "data_batch_2" in refusal(open_cifar10, write(tmp_path, files))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({b"labels": [1]}, "'data' is not an array"),
        ({b"data": [1], b"labels": [1]}, "'data' is not an array"),
        ({b"data": make_rows(2, 10, 0)[0][:, :-1], b"labels": [1, 2]}, "'data' is not an array"),
        ({b"data": make_rows(2, 10, 0)[0][..., None], b"labels": [1, 2]}, "'data' is not an array"),
        ({b"data": make_rows(2, 10, 0)[0][:0], b"labels": []}, "'data' is not an array"),
        ({b"data": make_rows(2, 10, 0)[0]}, "'labels' is not a list"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1, True]}, "'labels' is not a list"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1, 2**40]}, "'labels' is not a list"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1, b"2"]}, "'labels' is not a list"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1, -1]}, "'labels' is not a list"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1]}, "1 labels for 2 images"),
        ({b"data": make_rows(2, 10, 0)[0], b"labels": [1, 10]}, r"label 10 of image 1"),
    ],
)
def test_wrong_content_is_refused(tmp_path, content, reason):
    files = {**cifar10_files(), "test_batch": Python2Pickle(2).dumps(content)}
    message = refusal(open_cifar10, write(tmp_path, files))
    assert reason in message
    assert "test_batch" in message


TEN_NAMES = [name.encode() for name in CIFAR10_CLASSES]


@pytest.mark.parametrize("names", [[b"cat", b"dog"], TEN_NAMES[::-1], [*range(10)], 7])
def test_other_class_names_are_refused(tmp_path, names):
    names = Python2Pickle(2).dumps({b"label_names": names})
    path = write(tmp_path, {**cifar10_files(), "batches.meta": names})
    assert "class names are not the official" in refusal(open_cifar10, path)


@pytest.mark.parametrize("size", [0, 1, 3073 * 2 - 1, 3073 + 1])
def test_a_cut_off_binary_file_is_refused(tmp_path, size):
    files = {f"data_batch_{i + 1}.bin": records(3, 10, i, 1) for i in range(5)}
    path = write(tmp_path, {**files, "test_batch.bin": records(3, 10, 0, 1)[:size]})
    assert "test_batch.bin" in refusal(open_cifar10, path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_taken_up_to_the_limit(tmp_path, monkeypatch, packed):
    files = cifar10_files()
    path = write(tmp_path / "folder", files)
    if packed:
        path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    largest = max(map(len, files.values()))
    monkeypatch.setattr(cifar, "_MOST_BYTES", largest)
    assert_is_cifar10(open_cifar10(path))
    monkeypatch.setattr(cifar, "_MOST_BYTES", largest - 1)
    assert "larger than any official CIFAR file" in refusal(open_cifar10, path)


def test_no_more_than_the_limit_is_unpacked():
    """The largest file of all has 155 MB; a bomb may have any size."""
    asked = []

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size)
            return b""

    cifar._bounded(Endless(), "a bomb")
    assert len(asked) == 1
    assert 155_249_918 < asked[0] <= 2**28 + 1


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(cifar, "_bounded", fail)
    assert "Input/output error" in refusal(open_cifar10, write(tmp_path, cifar10_files()))


def test_an_archive_of_the_folder_itself(tmp_path):
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "./cifar-10-batches-py", cifar10_files())
    assert_is_cifar10(open_cifar10(path))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_damaged_archive_is_refused(tmp_path, share):
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files())
    data = bytearray(path.read_bytes())
    start = int(share * len(data))
    data[start : start + 64] = bytes(64)
    path.write_bytes(data)
    refusal(open_cifar10, path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_off_archive_is_refused(tmp_path, share):
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files())
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    refusal(open_cifar10, path)


def test_an_archive_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"<html>404</html>" * 100)
    refusal(open_cifar10, path)
    refusal(open_cifar10, write_archive(path, "elsewhere", cifar10_files()))


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in cifar10_files():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    assert "missing" in refusal(open_cifar10, path)


def test_an_empty_folder_is_refused(tmp_path):
    assert "test_batch" in refusal(open_cifar10, tmp_path)
    assert "test.bin" in refusal(open_cifar100, tmp_path)
