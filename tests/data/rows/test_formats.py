import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pmal._runtime import memory
from pmal.data.rows import formats
from pmal.data.rows.formats import read_entries
from pmal.errors import DataError

Z = np.arange(6, dtype=np.float32).reshape(3, 2)


def _npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def _parquet(file, metadata=None, **columns):
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), file)
    return file


def test_npz(tmp_path):
    path = _npz(tmp_path / "a.npz", z_0=Z, labels=np.array(["x", "é", "x"]), ids=np.array([3, 1, 2]), other=Z)
    entries, ignored = read_entries(path)
    assert np.array_equal(entries["z_0"], Z)
    assert entries["labels"] == ["x", "é", "x"]
    assert entries["ids"].tolist() == [3, 1, 2]
    assert ignored == ["other"]


def test_bytes_in_npz_are_utf8(tmp_path):
    names = np.array(["ä".encode(), b"b"])
    assert read_entries(_npz(tmp_path / "a.npz", paths=names))[0]["paths"] == ["ä", "b"]
    with pytest.raises(DataError, match="paths: its texts are not UTF-8"):
        read_entries(_npz(tmp_path / "b.npz", paths=np.array([b"\xff"])))


def test_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    z = torch.randn(3, 2).bfloat16()
    save_file(
        {"z": z, "label": torch.tensor([0, 1, 1]), "step": torch.ones(1)}, path, {"paths": '["a", "b", "c"]'}
    )
    entries, ignored = read_entries(path)
    assert torch.equal(entries["z"], z)
    assert entries["label"].tolist() == [0, 1, 1]
    assert entries["paths"] == ["a", "b", "c"]
    assert ignored == ["step"]


def test_parquet(tmp_path):
    metadata = {"W_0": "[[1, 2], [3, 4.5]]", "class_names": '["a", "b"]', "pandas": "{not json"}
    path = _parquet(
        tmp_path / "a.PARQUET", metadata, z_0=pa.array(Z.tolist()), path=["x", "y", "z"], url=[1, 2, 3]
    )
    entries, ignored = read_entries(path)
    assert entries["z_0"].tolist() == Z.tolist()
    assert entries["W_0"].tolist() == [[1, 2], [3, 4.5]]
    assert (entries["class_names"], entries["path"]) == (["a", "b"], ["x", "y", "z"])
    assert ignored == ["url"]


def test_known_names():
    names = ["z", "z_0", "z_12", "W", "W_0", "b_3", "embeddings", "label", "ids", "path"]
    assert [name for name in names if not formats.KNOWN.fullmatch(name)] == []


def test_unknown_names():
    names = ["z_", "z_01", "z0", "w_0", "z_-1", "y", "z_0 ", "Labels", "z_1٣"]
    assert list(filter(formats.KNOWN.fullmatch, names)) == []


# -- refused


def test_no_file_no_format(tmp_path):
    with pytest.raises(DataError, match=r"a.npz: no such file"):
        read_entries(tmp_path / "a.npz")
    with pytest.raises(DataError, match="a folder: name a file of embeddings"):
        read_entries(tmp_path)
    (tmp_path / "a.npy").write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"a.npy: embeddings are read from files that end in .npz, .safetensors, .par"
    ):
        read_entries(tmp_path / "a.npy")


@pytest.mark.parametrize("ending", ["npz", "safetensors", "parquet"])
def test_foreign_files(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="an empty file"):
        read_entries(path)
    for content in (b"hello", b"PAR1" + b"\x00" * 20 + b"PAR1", b"PK\x03\x04" + b"\x00" * 40, b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(DataError) as error:
            read_entries(path)
        assert str(error.value).startswith(f"{path}: not readable as")
        assert "\n" not in str(error.value)


def test_objects_are_never_unpickled(tmp_path):
    path = _npz(tmp_path / "a.npz", z_0=Z, labels=np.array(["a", None, 3], dtype=object))
    with pytest.raises(
        DataError, match="labels holds Python objects: save numbers, or strings with dtype=str"
    ):
        read_entries(path)


def test_a_matrix_of_texts(tmp_path):
    with pytest.raises(DataError, match=r"paths: expected a list of texts, got shape \(1, 2\)"):
        read_entries(_npz(tmp_path / "a.npz", paths=np.array([["a", "b"]])))


def test_declared_size_is_checked_before_reading(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    header = b"\x93NUMPY\x01\x00"
    text = (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 1000), }".ljust(117) + b"\n"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("z_0.npy", header + len(text).to_bytes(2, "little") + text + bytes(100))
    with pytest.raises(DataError, match=r"bomb.npz: .* declare 36,893,488,147,419,103,228,000: damaged"):
        read_entries(path)
    files = [
        _npz(tmp_path / "a.npz", z_0=Z),
        _parquet(tmp_path / "a.parquet", z_0=pa.array([[1.0] * 99] * 99)),
    ]
    save_file({"z": torch.zeros(50, 50)}, tmp_path / "a.safetensors")
    for path in [*files, tmp_path / "a.safetensors"]:
        read_entries(path)
        monkeypatch.setattr(memory, "memory_bytes", lambda: 20)
        with pytest.raises(DataError, match="bytes, more than the 20 that this process may have"):
            read_entries(path)
        monkeypatch.undo()


@pytest.mark.parametrize("text", ["[[1, 2], [3]]", "{", "[" * 100_000, ""])
def test_metadata_that_is_no_list(tmp_path, text):
    path = _parquet(tmp_path / "a.parquet", {"W_0": text}, z_0=pa.array(Z.tolist()))
    with pytest.raises(DataError, match=r"a.parquet: W_0 in the metadata is not a JSON list"):
        read_entries(path)


def test_an_entry_in_both_places(tmp_path):
    path = _parquet(tmp_path / "a.parquet", {"path": json.dumps(["a"])}, path=["a"])
    with pytest.raises(DataError, match="path occurs twice, once in the metadata"):
        read_entries(path)


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    z = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.savez_compressed(folder / "a.npz", z_0=z, labels=np.arange(20) % 2)
    save_file({"z_0": torch.from_numpy(z), "labels": torch.arange(20) % 2}, folder / "a.safetensors")
    _parquet(folder / "a.parquet", z_0=pa.array(z.tolist()), labels=list(range(20)))
    return {path.suffix: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".npz", ".safetensors", ".parquet"]), st.data())
def test_damage_is_an_error_or_nothing(tmp_path, whole_files, ending, data):
    """Any byte changed, or any part missing: read, or refused in one line. Never another exception."""
    content = bytearray(whole_files[ending])
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    message = f"{path}: "
    try:
        read_entries(path)
    except DataError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
