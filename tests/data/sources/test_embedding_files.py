"""Embeddings and their labels as a source."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pmal.data.samples import VectorStore
from pmal.data.sources.readers import open_source
from pmal.errors import DataError
from tests.support.embeddings import rows, write_pictures, write_rows


def opened(path):
    return open_source(str(path), None)


def classes(samples):
    return [samples.class_names[k] for k in samples.labels]


def test_texts_as_labels(tmp_path):
    source = opened(write_rows(tmp_path / "e.npz", 8))
    assert isinstance(source.train.store, VectorStore)
    assert (source.name, source.test) == ("e", None)
    assert source.train.class_names == ("cat", "dog", "fox", "owl")
    assert classes(source.train) == rows(8)[1].tolist()


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ([0, 1, 2, 0], None, ["0", "1", "2", "0"]),
        ([4, 9, 9, 4], None, ["4", "9", "9", "4"]),
        ([1, 0, 2, 1], ["x", "y", "z"], ["y", "x", "z", "y"]),
        ([2, 0, 2, 0], ["x", "y", "z"], ["z", "x", "z", "x"]),
        (["b", "a", "b", "a"], ["b", "a"], ["b", "a", "b", "a"]),
    ],
)
def test_labels_of_every_kind(tmp_path, labels, names, expected):
    more = {} if names is None else {"class_names": np.array(names)}
    source = opened(write_rows(tmp_path / "e.npz", 4, labels=np.array(labels), **more))
    assert classes(source.train) == expected


def test_a_test_part_of_its_own(tmp_path):
    vectors, labels = rows(6, seed=2)
    files = write_pictures(tmp_path, 6)
    more = {"test_embeddings": vectors, "test_labels": labels, "test_files": files}
    source = opened(write_rows(tmp_path / "e.npz", 8, **more))
    assert classes(source.test) == labels.tolist()
    np.testing.assert_array_equal(source.test.store.vectors, vectors)
    assert source.train.name(1).endswith("e.npz[1]")
    assert source.test.name(1).endswith("img/1.png")


def test_a_class_that_is_tested_only_can_be_an_unknown_one(tmp_path):
    vectors, _ = rows(2)
    more = {"test_embeddings": vectors, "test_labels": np.array(["wolf", "cat"])}
    source = opened(write_rows(tmp_path / "e.npz", 8, **more))
    assert "wolf" in source.train.class_names
    assert classes(source.test) == ["wolf", "cat"]


def parquet(path, metadata=None, **columns):
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def test_parquet_with_a_split(tmp_path):
    vectors, labels = rows(8)
    split = ["train"] * 5 + ["test"] * 3
    columns = {"features": vectors.tolist(), "label": labels.tolist(), "split": split}
    source = opened(parquet(tmp_path / "e.parquet", **columns, file=[f"{i}.png" for i in range(8)]))
    assert (len(source.train), len(source.test)) == (5, 3)
    assert source.test.name(0).endswith("5.png")
    assert classes(source.test) == labels[5:].tolist()


def test_parquet_with_the_class_names_of_hugging_face(tmp_path):
    features = {"label": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    vectors, _ = rows(4)
    source = opened(parquet(tmp_path / "e.parquet", metadata, embedding=vectors.tolist(), label=[1, 0, 1, 0]))
    assert classes(source.train) == ["bee", "ant", "bee", "ant"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array(["a", "b"])}, "labels: 2 labels for 8 rows"),
        ({"labels": np.arange(8) / 2}, "labels: expected a vector of integers, got float64"),
        (
            {"labels": np.arange(8)[:, None]},
            "labels: expected a vector of integers, got int64 of shape (8, 1)",
        ),
        ({"labels": np.arange(8) - 1}, "labels: sample 0 has label -1"),
        ({"labels": np.array([{}] * 8)}, "labels holds Python objects"),
        ({"labels": np.array(["a"] * 8)}, "all samples are of class 'a': two classes or more are needed"),
        ({"labels": np.array(["a", " "] * 4)}, "a class without a name"),
        ({"class_names": np.array(["cat", "dog"])}, "labels: sample 2 is of class 'owl', which is not among"),
        ({"class_names": np.array(["cat"] * 4)}, "class_names: 'cat' occurs twice"),
        ({"class_names": np.arange(4)}, "class_names: int64 of shape (4,), not a list of texts"),
        ({"test_embeddings": rows(4)[0]}, "no 'test_labels' in it"),
        ({"test_labels": np.arange(3)}, "no 'test_embeddings' in it"),
        ({"test_embeddings": rows(4)[0][:, :3], "test_labels": rows(4)[1]}, "but 3 in the test part"),
        ({"test_embeddings": rows(4)[0], "test_labels": np.arange(4)}, "labels are numbers in one part"),
        (
            {"split": np.array(["train"] * 8), "test_embeddings": rows(4)[0], "test_labels": rows(4)[1]},
            "both split and test_embeddings",
        ),
        ({"split": np.array(["train", "test"])}, "split: 2 entries for 8 rows"),
        ({"split": np.array(["train", "half"] * 4)}, "row 1 has split 'half', not train or test"),
        ({"split": np.array(["test"] * 8)}, "no row has split 'train'"),
    ],
)
def test_what_is_refused(tmp_path, change, message):
    path = write_rows(tmp_path / "e.npz", 8, **change)
    with pytest.raises(DataError) as caught:
        opened(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_labels_are_needed(tmp_path):
    np.savez(tmp_path / "e.npz", embeddings=rows(4)[0])
    with pytest.raises(DataError, match=r"e\.npz: no 'labels' in it: add the class of each row"):
        opened(tmp_path / "e.npz")


def test_rows_under_the_name_of_images_are_told_theirs(tmp_path):
    np.savez(tmp_path / "e.npz", X=rows(4)[0], y=np.arange(4))
    with pytest.raises(DataError, match=r"shape 4x16 is not .*: call embeddings 'embeddings'"):
        opened(tmp_path / "e.npz")
