"""Parquet: Hugging Face's layout in, the same layout out, and what is refused."""

import gc
import io
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pmal.data.decoding.decode import encode_png
from pmal.data.samples import ArrayStore, BadImage, PixelStore, Samples
from pmal.data.sources import _image_column, _spool, parquet
from pmal.data.sources.folder import open_folder
from pmal.data.sources.parquet import ParquetStore, open_parquet, write_parquet
from pmal.errors import DataError, UsageError

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ("cat", "dog", "eel")
SPLITS = ["test", "train", "train", "test", "train"]


def shade(value: int) -> bytes:
    return encode_png(np.full((4, 4, 1), value, np.uint8))


def put(
    path: Path,
    labels: list[int | None],
    first_shade: int = 0,
    names: tuple[str, ...] | None = NAMES,
    columns: tuple[str, str] = ("image", "label"),
    plain: bool = False,
    **more: list[Any],
) -> Path:
    """A file as other programs write it; image i is uniformly `first_shade + i`."""
    data = [shade(first_shade + i) for i in range(len(labels))]
    images = data if plain else [{"bytes": each, "path": f"{i}.png"} for i, each in enumerate(data)]
    fields = [(columns[0], pa.binary() if plain else IMAGE), (columns[1], pa.int64())]
    fields += [(name, pa.string()) for name in more]
    feature = {"_type": "ClassLabel", "names": list(names or ())}
    metadata = {"huggingface": json.dumps({"info": {"features": {columns[1]: feature}}})} if names else None
    table = pa.table([images, labels, *more.values()], schema=pa.schema(fields, metadata=metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=3)
    return path


def shades(samples: Samples) -> list[int]:
    return [int(samples.read(i)[0, 0, 0]) for i in range(len(samples))]


def test_one_file(tmp_path: Path) -> None:
    source = open_parquet(put(tmp_path / "pets.parquet", [2, 0, 1, 1], first_shade=10))
    assert source.name == "pets"
    assert source.test is None
    assert source.train.class_names == NAMES
    assert source.train.labels.tolist() == [2, 0, 1, 1]
    assert source.train.ids.tolist() == [0, 1, 2, 3]
    assert shades(source.train) == [10, 11, 12, 13]
    assert source.train.name(3) == "pets.parquet row 3"


def test_shards_are_parts_in_the_order_of_their_names(tmp_path: Path) -> None:
    put(tmp_path / "train-00001-of-00002.parquet", [1, 1], first_shade=20)
    put(tmp_path / "train-00000-of-00002.parquet", [0, 2, 0, 2], first_shade=10)
    put(tmp_path / "validation-00000-of-00001.parquet", [2], first_shade=30)
    source = open_parquet(tmp_path)
    assert source.test is not None
    assert shades(source.train) == [10, 11, 12, 13, 20, 21]
    assert source.train.labels.tolist() == [0, 2, 0, 2, 1, 1]
    assert source.train.name(4) == "train-00001-of-00002.parquet row 0"
    assert shades(source.test) == [30]
    assert source.test.name(0) == "validation-00000-of-00001.parquet row 0"


def test_test_shards_win_over_validation_shards(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "val", "test")):
        put(tmp_path / f"{name}-0.parquet", [0], first_shade=number)
    source = open_parquet(tmp_path)
    assert source.test is not None
    assert shades(source.test) == [2]


def test_shards_without_known_names_are_one_part(tmp_path: Path) -> None:
    put(tmp_path / "b.parquet", [1], first_shade=2)
    put(tmp_path / "a.parquet", [0], first_shade=1)
    source = open_parquet(tmp_path)
    assert shades(source.train) == [1, 2]
    assert source.test is None


def test_a_split_column_gives_both_parts(tmp_path: Path) -> None:
    source = open_parquet(put(tmp_path / "x.parquet", [0, 1, 2, 1, 0], split=SPLITS))
    assert source.test is not None
    assert shades(source.train) == [1, 2, 4]
    assert source.train.ids.tolist() == [0, 1, 2]
    assert source.train.labels.tolist() == [1, 2, 0]
    assert source.train.name(2) == "x.parquet row 4"
    assert shades(source.test) == [0, 3]
    assert source.test.labels.tolist() == [0, 1]


def test_a_folder_is_divided_as_its_file_is(tmp_path: Path) -> None:
    path = put(tmp_path / "pets" / "converted.parquet", [0, 1, 2, 1, 0], split=SPLITS)
    alone, folder = open_parquet(path), open_parquet(path.parent)
    assert folder.name == "pets"
    assert folder.test is not None
    assert alone.test is not None
    assert_same(folder.train, alone.train)
    assert_same(folder.test, alone.test)
    assert shades(folder.test) == [0, 3]


def test_a_split_column_over_several_files(tmp_path: Path) -> None:
    put(tmp_path / "b.parquet", [2, 1], first_shade=20, split=["train", "validation"])
    put(tmp_path / "a.parquet", [0, 1, 2, 1, 0], first_shade=10, split=["validation", *SPLITS[1:3] * 2])
    source = open_parquet(tmp_path)
    assert source.test is not None
    assert shades(source.train) == [11, 12, 13, 14, 20]
    assert shades(source.test) == [10, 21]
    assert source.test.labels.tolist() == [0, 1]
    assert source.test.name(1) == "b.parquet row 1"


def test_a_column_that_says_train_alone_leaves_no_test_part(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [0, 1], split=["train", "train"])
    assert open_parquet(tmp_path).test is None


def test_names_of_shards_come_before_a_split_column(tmp_path: Path) -> None:
    put(tmp_path / "train-0.parquet", [0, 1], first_shade=10, split=["train", "test"])
    put(tmp_path / "train-1.parquet", [0], first_shade=20)
    put(tmp_path / "test-0.parquet", [2, 1], first_shade=30, split=["train", "other"])
    source = open_parquet(tmp_path)
    assert source.test is not None
    assert shades(source.train) == [10, 11, 20]
    assert shades(source.test) == [30, 31]


def test_a_folder_whose_split_column_cannot_be_used(tmp_path: Path) -> None:
    put(tmp_path / "b.parquet", [0, 1], split=["test", "test"])
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path)
    assert str(caught.value) == f"{tmp_path}: no row has split 'train'"
    put(tmp_path / "c.parquet", [0, 1], split=["train", "de\nv"])
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path)
    assert str(caught.value) == rf"{tmp_path}/c.parquet: row 1 has split 'de\nv', not train or test"
    put(tmp_path / "c.parquet", [0, 1])
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path)
    assert str(caught.value) == f"{tmp_path}/c.parquet: no column 'split' as in b.parquet"


@pytest.mark.parametrize("columns", [("img", "fine_label"), ("image", "labels")])
def test_other_column_names(tmp_path: Path, columns: tuple[str, str]) -> None:
    source = open_parquet(put(tmp_path / "x.parquet", [1, 2], columns=columns))
    assert source.train.labels.tolist() == [1, 2]
    assert source.train.class_names == NAMES


def test_a_plain_binary_column(tmp_path: Path) -> None:
    assert shades(open_parquet(put(tmp_path / "x.parquet", [1, 2], plain=True)).train) == [0, 1]


def test_without_names_the_labels_are_the_names(tmp_path: Path) -> None:
    put(tmp_path / "train-0.parquet", [1, 3], names=None)
    put(tmp_path / "test-0.parquet", [4], names=None)
    assert open_parquet(tmp_path).train.class_names == ("0", "1", "2", "3", "4")


def test_rows_without_bytes_are_bad_images(tmp_path: Path) -> None:
    images = [{"bytes": None, "path": "a.png"}, None, {"bytes": b"", "path": None}]
    pq.write_table(pa.table({"image": pa.array(images, IMAGE), "label": [0, 1, 1]}), tmp_path / "x.parquet")
    train = open_parquet(tmp_path / "x.parquet").train
    for position, reason in enumerate(["no image bytes", "no image bytes", "empty file"]):
        with pytest.raises(BadImage, match=f"^{reason}$"):
            train.read(position)


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 3], NAMES, "x.parquet row 1: label 3 is not in 0..2"),
        ([0, 0, -1], NAMES, "x.parquet row 2: label -1 is not in 0..2"),
        ([0, -1], None, "x.parquet row 1: label -1 is not in 0.."),
        ([0, 10**9], None, "x.parquet row 1: label 1000000000 is not in 0.."),
        ([0, None], NAMES, "x.parquet: row 1 has no label"),
        ([], NAMES, "x.parquet: no rows in it"),
    ],
)
def test_labels_out_of_range(
    tmp_path: Path, labels: list[int | None], names: tuple[str, ...] | None, message: str
) -> None:
    put(tmp_path / "x.parquet", labels, names=names)
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path / "x.parquet")
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_wrong_label_in_a_later_shard_names_that_shard(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [0, 1])
    put(tmp_path / "b.parquet", [0, 1, 7])
    with pytest.raises(DataError, match=r"b\.parquet row 2: label 7"):
        open_parquet(tmp_path)


def test_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("not Parquet at all, but long enough to have a footer")
    whole = put(tmp_path / "whole.parquet", [0, 1]).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.parquet").write_bytes(b"")
    pq.write_table(pa.table({"image": [b""], "y": [1]}), tmp_path / "y.parquet")
    pq.write_table(pa.table({"image": [1], "label": [1]}), tmp_path / "type.parquet")
    pq.write_table(pa.table({"image": [{"path": "a.png"}], "label": [1]}), tmp_path / "path.parquet")
    pq.write_table(pa.table({"image": [b""], "label": ["cat"]}), tmp_path / "string.parquet")
    put(tmp_path / "split.parquet", [0, 1], split=["train", "dev"])
    put(tmp_path / "test.parquet", [0, 1], split=["test", "test"])
    expected = {
        "text": "not readable as Parquet",
        "cut": "not readable as Parquet",
        "empty": "not readable as Parquet",
        "missing": "no such file",
        "y": "no column named label or labels or fine_label; its columns are: 'image', 'y'",
        "type": "column 'image' is int64, not encoded image bytes",
        "path": "column 'image' is struct<path: string>, not encoded image bytes",
        "string": "the labels are string, not integers",
        "split": "row 1 has split 'dev', not train or test",
        "test": "no row has split 'train'",
    }
    for name, message in expected.items():
        with pytest.raises(DataError) as caught:
            open_parquet(tmp_path / f"{name}.parquet")
        assert str(caught.value).startswith(f"{tmp_path / name}.parquet: {message}")
        assert "\n" not in str(caught.value)


def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.parquet files in it"):
        open_parquet(tmp_path)
    put(tmp_path / "test-0.parquet", [0])
    with pytest.raises(DataError, match=r"no train-\*\.parquet next to test-0\.parquet"):
        open_parquet(tmp_path)
    put(tmp_path / "train-0.parquet", [0], names=("other", "names"))
    with pytest.raises(DataError, match="class names differ"):
        open_parquet(tmp_path)


def test_a_shard_without_the_columns_of_the_first_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [0])
    put(tmp_path / "b.parquet", [0], columns=("image", "fine_label"))
    with pytest.raises(DataError, match=r"b\.parquet: no column 'label' as in a\.parquet"):
        open_parquet(tmp_path)
    put(tmp_path / "b.parquet", [0], columns=("img", "label"))
    with pytest.raises(DataError, match=r"b\.parquet: no column 'image' as in a\.parquet"):
        open_parquet(tmp_path)


def test_hidden_files_are_no_shards(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [0])
    (tmp_path / ".a.parquet").write_bytes(b"the dropping of a desktop")
    assert len(open_parquet(tmp_path).train) == 1


def test_class_names_that_are_no_list_are_not_taken_apart(tmp_path: Path) -> None:
    text = json.dumps({"info": {"features": {"label": {"names": "abc"}}}})
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())], metadata={"huggingface": text})
    pq.write_table(pa.table([[b""], [0]], schema=schema), tmp_path / "x.parquet")
    assert open_parquet(tmp_path / "x.parquet").train.class_names == ("0",)


def test_a_column_of_large_binaries(tmp_path: Path) -> None:
    images = pa.array([shade(7)], pa.large_binary())
    pq.write_table(pa.table({"image": images, "label": [0]}), tmp_path / "x.parquet")
    assert shades(open_parquet(tmp_path / "x.parquet").train) == [7]


def test_files_that_changed_since_they_were_opened_are_refused(tmp_path: Path) -> None:
    train = open_parquet(put(tmp_path / "x.parquet", [0, 1, 2])).train
    put(tmp_path / "x.parquet", [0, 1])
    with pytest.raises(DataError, match="the files have changed since they were opened"):
        train.read(0)


def test_images_are_read_once(tmp_path: Path) -> None:
    path = put(tmp_path / "x.parquet", [0, 1, 2])
    train = open_parquet(path).train
    train.read(0)
    path.unlink()
    assert shades(train) == [0, 1, 2]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"info": 3}', '{"info": {"features": {}}}', '{"info": {"features": {"label": 3}}}'],
)
def test_metadata_that_is_broken_is_not_passed_over(tmp_path: Path, text: str) -> None:
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())], metadata={"huggingface": text})
    pq.write_table(pa.table([[b""], [0]], schema=schema), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: its 'huggingface' metadata"):
        open_parquet(tmp_path / "x.parquet")


def test_damaged_pages_name_the_file(tmp_path: Path) -> None:
    path = put(tmp_path / "x.parquet", [0, 1, 2])
    pages = pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[pages : pages + 40] = b"\xff" * 40
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"x\.parquet: not readable as Parquet"):
        open_parquet(path).train.read(0)


# -- large files and other processes --


def test_large_files_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "train-0.parquet", [0, 1, 2, 0, 1], first_shade=10)
    put(tmp_path / "train-1.parquet", [0, 1], first_shade=20)
    monkeypatch.setattr(_image_column, "SPOOL_BYTES", 100)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    (tmp_path / "spool").mkdir()
    gc.collect()  # what earlier tests left would be freed in between
    before = pa.total_allocated_bytes()
    source = open_parquet(tmp_path)
    assert list((tmp_path / "spool").iterdir()) == []
    assert shades(source.train) == [10, 11, 12, 13, 14, 20, 21]
    assert shades(source.train) == [10, 11, 12, 13, 14, 20, 21]
    assert len(list((tmp_path / "spool").glob("*/images.arrow"))) == 1
    assert pa.total_allocated_bytes() <= before
    del source
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_full_disk_is_told_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    put(tmp_path / "x.parquet", [0, 1])
    monkeypatch.setattr(_image_column, "SPOOL_BYTES", 1)
    opened = pa.OSFile
    monkeypatch.setattr(pa, "OSFile", lambda path, mode: opened("/dev/full", mode))
    with pytest.raises(DataError, match=r"No space left on device.*set TMPDIR"):
        open_parquet(tmp_path / "x.parquet").train.read(0)


def read_in_worker(store: PixelStore, row: int) -> tuple[int, int]:
    return int(store.read(row)[0, 0, 0]), pa.total_allocated_bytes()


def test_worker_processes_map_the_images(tmp_path: Path) -> None:
    store = open_parquet(put(tmp_path / "x.parquet", [0, 1, 2, 0, 1], first_shade=30)).train.store
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = [pool.submit(read_in_worker, store, row).result() for row in range(5)]
    assert answers == [(30, 0), (31, 0), (32, 0), (33, 0), (34, 0)]
    assert int(store.read(4)[0, 0, 0]) == 34


def test_what_is_sent_to_a_worker_holds_no_images(tmp_path: Path) -> None:
    store = open_parquet(put(tmp_path / "x.parquet", [0, 1])).train.store
    assert isinstance(store, ParquetStore)
    store.read(0)
    assert not store.column.__getstate__()["_chunks"]


def test_a_forked_process_does_not_remove_the_copy(tmp_path: Path) -> None:
    held = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]
    _spool._remove(tmp_path, held[0], os.getpid() + 1)
    assert tmp_path.exists()
    _spool._remove(tmp_path, held[1], os.getpid())
    os.close(held[0])
    assert not tmp_path.exists()


# -- writing --


def test_parts_with_other_class_names_are_not_written(tmp_path: Path) -> None:
    pixels, label = np.zeros((1, 3, 3, 1), np.uint8), np.array([0])
    parts = {name: Samples.whole(ArrayStore("x", pixels), label, (name,)) for name in ("train", "test")}
    with pytest.raises(ValueError, match="need the same class names"):
        write_parquet(tmp_path / "x.parquet", parts)


def assert_same(left: Samples, right: Samples) -> None:
    assert left.class_names == right.class_names
    assert left.ids.tolist() == right.ids.tolist()
    assert left.labels.tolist() == right.labels.tolist()
    assert all(np.array_equal(left.read(i), right.read(i)) for i in range(len(left)))


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_round_trip(tmp_path: Path, channels: int) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", 1203), ("test", 7)):
        pixels = rng.integers(0, 256, (count, 5, 6, channels), dtype=np.uint8)
        parts[name] = Samples.whole(ArrayStore(name, pixels), rng.integers(0, 3, count), NAMES)
    write_parquet(tmp_path / "out.parquet", parts)
    source = open_parquet(tmp_path / "out.parquet")
    assert source.test is not None
    assert_same(source.train, parts["train"])
    assert_same(source.test, parts["test"])
    groups = pq.ParquetFile(tmp_path / "out.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [1000, 203, 7]


def test_row_groups_of_large_images_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", len(shade(0)) + 10)
    whole = open_parquet(put(tmp_path / "x.parquet", [0, 1, 2, 0])).train
    write_parquet(tmp_path / "y.parquet", {"train": whole})
    groups = pq.ParquetFile(tmp_path / "y.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [2, 2]
    assert shades(open_parquet(tmp_path / "y.parquet").train) == [0, 1, 2, 3]


def test_encoded_images_keep_their_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        Image.new("RGB", (9, 7), "red").save(tmp_path / "tree" / name / "x.jpg")
    (tmp_path / "tree" / "b" / "broken.jpg").write_bytes(b"not an image")
    (tmp_path / "tree" / "b" / "gone.jpg").symlink_to("nowhere")
    first = open_folder(tmp_path / "tree").train
    write_parquet(tmp_path / "one.parquet", {"train": first})
    second = open_parquet(tmp_path / "one.parquet").train
    write_parquet(tmp_path / "two.parquet", {"train": second})
    third = open_parquet(tmp_path / "two.parquet").train
    assert isinstance(third.store, ParquetStore)
    original = (tmp_path / "tree" / "a" / "x.jpg").read_bytes()
    assert [third.store.encoded(i) for i in (0, 1, 3)] == [original, b"not an image", original]
    with pytest.raises(BadImage, match="no image bytes"):
        third.store.encoded(2)
    table = pq.read_table(tmp_path / "two.parquet")
    assert table.column_names == ["image", "label"]
    assert table.column("label").to_pylist() == [0, 1, 1, 1]
    assert pq.read_table(tmp_path / "one.parquet").column("image")[0].as_py()["path"] == "x.jpg"


def test_a_subset_is_written_in_its_order(tmp_path: Path) -> None:
    whole = open_parquet(put(tmp_path / "x.parquet", [0, 1, 2, 0])).train
    write_parquet(tmp_path / "y.parquet", {"train": whole.at(np.array([3, 1]))})
    assert shades(open_parquet(tmp_path / "y.parquet").train) == [3, 1]


def test_names_are_written_as_hugging_face_writes_them(tmp_path: Path) -> None:
    names = ("größe", "<script>")
    pixels = np.zeros((2, 3, 3, 1), np.uint8)
    part = Samples.whole(ArrayStore("x", pixels), np.array([0, 1]), names)
    write_parquet(tmp_path / "new" / "x.parquet", {"train": part, "test": part})
    metadata = pq.read_schema(tmp_path / "new" / "x.parquet").metadata[b"huggingface"]
    features = json.loads(metadata)["info"]["features"]
    assert features["label"] == {"_type": "ClassLabel", "names": list(names)}
    image = pq.read_table(tmp_path / "new" / "x.parquet").column("image")[0].as_py()
    assert image["path"] == "x[0]"
    assert Image.open(io.BytesIO(image["bytes"])).format == "PNG"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = put(tmp_path / "x.parquet", [0, 1])
    old = path.read_bytes()

    class Failing:
        def __len__(self) -> int:
            return 2

        def name(self, row: int) -> str:
            return "failing"

        def read(self, row: int) -> Any:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_parquet(path, {"train": Samples.whole(Failing(), np.array([0, 1]), NAMES)})
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["x.parquet"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    part = Samples.whole(ArrayStore("x", np.zeros((1, 3, 3, 1), np.uint8)), np.array([0]), NAMES)
    with pytest.raises(UsageError, match="cannot write to"):
        write_parquet(tmp_path / "file" / "x.parquet", {"train": part})


# -- real data --


def test_cifar10_in_parquet(real_data: Path) -> None:
    root = real_data / "cifar10"
    if not root.is_dir():
        pytest.skip("needs cifar10 under $PMAL_DATA")
    source = open_parquet(root)
    assert source.test is not None
    assert np.bincount(source.train.labels).tolist() == [5000] * 10
    assert np.bincount(source.test.labels).tolist() == [1000] * 10
    assert source.train.class_names[:2] == ("airplane", "automobile")
    assert source.train.read(49_999).shape == (32, 32, 3)
