import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pmal.errors import DataError
from pmal.mining.files.embedding_file import read_embeddings

FORMATS = ("npz", "safetensors", "parquet")


def _entries(samples=12, classes=3, spaces=2, seed=0):
    rng = np.random.default_rng(seed)
    entries = {"labels": np.arange(samples) % classes}
    for u in range(spaces):
        entries[f"z_{u}"] = rng.normal(size=(samples, 4 + u)).astype(np.float32)
        entries[f"W_{u}"] = rng.normal(size=(classes, 4 + u)).astype(np.float32)
        entries[f"b_{u}"] = rng.normal(size=classes).astype(np.float32)
    return entries


def _write(path, entries):
    """The same entries in the format that the name asks for."""
    if path.suffix == ".npz":
        np.savez(path, **entries)
    elif path.suffix == ".safetensors":
        tensors = {k: torch.from_numpy(v) for k, v in entries.items() if isinstance(v, np.ndarray)}
        texts = {k: json.dumps(v) for k, v in entries.items() if isinstance(v, list)}
        save_file(tensors, path, texts)
    else:
        columns = {k: v for k, v in entries.items() if k[0] not in "Wb" and k != "class_names"}
        columns = {k: v.tolist() if np.ndim(v) == 2 else v for k, v in columns.items()}
        table = pa.table({k: pa.array(v) for k, v in columns.items()})
        rest = {k: v for k, v in entries.items() if k not in columns}
        metadata = {k: json.dumps(v if isinstance(v, list) else v.tolist()) for k, v in rest.items()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def _refused(tmp_path, entries, message):
    path = _write(tmp_path / "e.npz", entries)
    with pytest.raises(DataError) as error:
        read_embeddings(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_says_the_same(tmp_path, ending):
    entries = _entries()
    entries |= {
        "class_names": ["x", "y", "é"],
        "paths": [f"{i}.png" for i in range(12)],
        "ids": np.arange(12) * 2,
    }
    found = read_embeddings(_write(tmp_path / f"e.{ending}", entries))
    for u in range(2):
        assert np.array_equal(found.z[u].numpy(), entries[f"z_{u}"])
        assert np.array_equal(found.heads[u][0].numpy(), entries[f"W_{u}"])
        assert np.array_equal(found.heads[u][1].numpy(), entries[f"b_{u}"])
    assert found.labels.tolist() == entries["labels"].tolist()
    assert found.ids.tolist() == list(range(0, 24, 2))
    assert (found.num_classes, found.class_names) == (3, ("x", "y", "é"))
    assert found.paths == tuple(entries["paths"])
    assert found.ignored == ()


@pytest.mark.parametrize("ending", FORMATS)
def test_one_space_without_a_head(tmp_path, ending):
    for name in ("z", "embeddings", "embedding", "features", "z_0"):
        entries = {name: _entries()["z_0"], "label": np.array([4, 7] * 6), "score": np.ones(12)}
        found = read_embeddings(_write(tmp_path / f"{name}.{ending}", entries))
        assert np.array_equal(found.z[0].numpy(), entries[name])
        assert (found.heads, found.paths, found.ids.tolist()) == ((), None, list(range(12)))
        assert (found.labels.tolist(), found.class_names, found.num_classes) == ([0, 1] * 6, ("4", "7"), 2)
        assert found.ignored == ("score",)


def test_one_space_with_a_head_may_go_without_numbers(tmp_path):
    e = _entries()
    found = read_embeddings(_write(tmp_path / "e.npz", {"z": e["z_0"], "W": e["W_0"], "labels": e["labels"]}))
    assert np.array_equal(found.heads[0][0].numpy(), e["W_0"])
    assert found.heads[0][1] is None


@pytest.mark.parametrize("ending", FORMATS)
def test_named_labels(tmp_path, ending):
    entries = _entries() | {"labels": ["b", "c", "a"] * 4}
    found = read_embeddings(_write(tmp_path / f"e.{ending}", entries))
    assert (found.labels.tolist(), found.class_names) == ([1, 2, 0] * 4, ("a", "b", "c"))
    entries["class_names"] = ["c", "b", "a"]
    found = read_embeddings(_write(tmp_path / f"e.{ending}", entries))
    assert (found.labels.tolist(), found.class_names) == ([1, 0, 2] * 4, ("c", "b", "a"))


def test_classes_of_a_head_may_have_no_samples(tmp_path):
    found = read_embeddings(_write(tmp_path / "e.npz", _entries() | {"labels": np.full(12, 2)}))
    assert (found.labels.tolist(), found.num_classes) == ([2] * 12, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_types(tmp_path, dtype):
    z = torch.randn(12, 4).to(dtype)
    save_file({"z": z, "labels": torch.arange(12) % 3}, tmp_path / "e.safetensors")
    found = read_embeddings(tmp_path / "e.safetensors").z[0]
    assert torch.equal(found.double(), z.double())
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("dtype", [">f4", "<f2", "<f8"])
def test_float_types_of_numpy(tmp_path, dtype):
    z = _entries()["z_0"].astype(dtype)
    found = read_embeddings(_write(tmp_path / "e.npz", {"z": z, "labels": np.arange(12) % 3})).z[0]
    assert np.array_equal(found.numpy(), z)
    assert found.dtype == (torch.float64 if dtype == "<f8" else torch.float32)


def test_samples_are_sorted_by_id(tmp_path):
    entries = _entries() | {"paths": [f"{i}.png" for i in range(12)]}
    order = np.random.default_rng(1).permutation(12)
    shuffled = {k: v[order] if k[0] == "z" or k == "labels" else v for k, v in entries.items()}
    shuffled |= {"paths": [entries["paths"][i] for i in order], "ids": order}
    found = read_embeddings(_write(tmp_path / "e.npz", shuffled))
    assert np.array_equal(found.z[1].numpy(), entries["z_1"])
    assert found.labels.tolist() == entries["labels"].tolist()
    assert (found.paths, found.ids.tolist()) == (tuple(entries["paths"]), list(range(12)))


# -- what does not fit together


def _without(*names):
    return lambda entries: {k: v for k, v in entries.items() if k not in names}


def _with(**more):
    return lambda entries: entries | more


def _nan(name, row):
    def change(entries):
        entries[name][row, 1] = np.nan
        return entries

    return change


Z = np.zeros((12, 4), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("labels"), "no labels: add the class of each sample as 'labels'"),
        (
            _without("z_0", "z_1", "W_0", "W_1", "b_0", "b_1"),
            "no embeddings: call them z_0, z_1, ...; it has: labels",
        ),
        (lambda entries: {"vectors": Z}, "no embeddings: call them z_0, z_1, ...; it has: vectors"),
        (
            _without("W_1", "b_1"),
            "z_1 has no class weights W_1, others have theirs: add it, or leave all of them",
        ),
        (_without("W_1"), "b_1: a bias without class weights W_1"),
        (_without("z_1"), "W_1: there is no z_1 that it belongs to"),
        (_without("z_0"), "embeddings z_1: number the spaces from 0, without gaps"),
        (_with(z_3=Z, W_3=Z[:3]), "embeddings z_0, z_1, z_3: number the spaces from 0"),
        (_with(z=Z), "both z, z_0, z_1: call the spaces z_0, z_1, ..."),
        (_with(W=Z[:3]), "W: there is no z that it belongs to"),
        (_with(label=np.zeros(12, int)), "both labels and label: remove one of them"),
        (_with(z_1=Z[:11], W_1=Z[:3]), "z_1: 11 rows for 12 samples"),
        (_with(labels=np.zeros(11, int)), "labels: 11 rows for 12 samples"),
        (_with(labels=["a"] * 11), "labels: 1 different classes, but the heads have 3: add class_names"),
        (_with(labels=np.full(12, 3)), "labels: sample 0 has label 3, but classes are 0 to 2"),
        (_with(labels=np.zeros(12)), "labels: expected a vector of integers, got float64"),
        (
            _with(W_0=np.zeros((3, 5), np.float32)),
            "W_0: 5 channels, but z_0 has 4: weights are (classes, channels)",
        ),
        (_with(W_1=np.zeros((4, 5)), b_1=np.zeros(4)), "W_1: 4 classes, but W_0 has 3"),
        (_with(b_1=np.zeros(2)), "b_1: 2 biases for 3 classes"),
        (_with(b_1=np.zeros((3, 1))), "b_1: expected a vector, got shape (3, 1)"),
        (_with(W_1=np.full((3, 5), np.inf)), "W_1: NaN or infinite values"),
        (_with(W_1=["a"]), "W_1: expected real numbers"),
        (_with(W_1=np.zeros((3, 5), complex)), "W_1: expected real numbers, got complex128"),
        (_nan("z_1", 7), "z_1: sample 7 has NaN or infinite values"),
        (_with(z_1=np.full((12, 5), 1e301)), "z_1: sample 0 has numbers beyond 1e+300"),
        (_with(z_1=["a"] * 12), "z_1: texts, not embeddings"),
        (
            _with(z_1=np.zeros((12, 5), int)),
            "z_1: int64: embeddings must be float16, bfloat16, float32 or float64",
        ),
        (_with(z_1=np.zeros((12, 5), complex)), "z_1: complex128: embeddings must be float16"),
        (_with(z_1=np.zeros((12, 5, 1))), "z_1: expected a matrix with columns, got shape (12, 5, 1)"),
        (_with(z_1=np.zeros((12, 0))), "z_1: expected a matrix with columns, got shape (12, 0)"),
        (_with(ids=np.array([1, 2, 3, 4, 5, 6, 7, 3, 9, 10, 11, 12])), "ids: 3 occurs twice"),
        (_with(ids=np.arange(12) - 1), "ids: sample 0 has a negative one"),
        (_with(ids=np.arange(11)), "ids: 11 rows for 12 samples"),
        (_with(ids=["a"] * 12), "ids: texts: ids are whole numbers, texts may be given as 'paths'"),
        (_with(ids=np.arange(12.0)), "ids: expected a vector of integers, got float64"),
        (_with(paths=["a"]), "paths: 1 names given, 12 needed"),
        (_with(paths=np.arange(12)), "paths: int64 of shape (12,), not a list of texts"),
        (_with(paths=["\ud800"] * 12), "paths: a text that cannot be written as UTF-8"),
        (_with(class_names=["\ud800", "b", "c"]), "class_names: a text that cannot be written as UTF-8"),
        (_with(class_names=["a", "b"]), "class_names: 2 names, but the heads have 3 classes"),
    ],
)
def test_what_is_refused(tmp_path, change, message):
    _refused(tmp_path, change(_entries()), message)


@pytest.mark.parametrize("name", ["z", "z_0"])
def test_no_samples(tmp_path, name):
    _refused(tmp_path, {name: Z[:0], "labels": np.zeros(0, int)}, f"{name}: no samples")


def test_one_class(tmp_path):
    _refused(
        tmp_path, {"z": Z, "labels": np.zeros(12, int)}, "labels: all samples are of class 0: two classes"
    )
    _refused(
        tmp_path, {"z": Z, "labels": ["cat"] * 12}, "labels: all samples are of class 'cat': two classes"
    )
    head = {"z_0": Z, "W_0": Z[:1], "labels": np.zeros(12, int)}
    _refused(tmp_path, head, "W_0: a head with 1 class: two classes or more are needed")


def test_integers_of_safetensors_are_no_embeddings(tmp_path):
    save_file({"z": torch.zeros(3, 2).int(), "labels": torch.arange(3)}, tmp_path / "e.safetensors")
    with pytest.raises(DataError, match=r"z: torch.int32: embeddings must be float16"):
        read_embeddings(tmp_path / "e.safetensors")
