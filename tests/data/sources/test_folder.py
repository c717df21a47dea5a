"""Folders of class folders: what becomes a sample, with which id and label, and what is refused."""

import errno
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pmal.data.decoding.decode import encode_png
from pmal.data.samples import BadImage
from pmal.data.sources import folder as folder_module
from pmal.data.sources.folder import FileStore, PathTable, holds_samples_at, list_files, open_folder
from pmal.errors import DataError


def put_image(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(np.full((4, 4, 1), shade, np.uint8)))


def make_tree(root: Path, files: dict[str, int]) -> Path:
    for name, shade in files.items():
        put_image(root / name, shade)
    return root


def test_class_folders(tmp_path: Path) -> None:
    tree = {"dog/b.png": 1, "cat/sub/deep/z.png": 2, "cat/a.jpg": 3, "dog/.hidden.png": 4, "dog/Thumbs.db": 5}
    source = open_folder(make_tree(tmp_path / "pets", tree | {".git/x": 6, "loose.png": 7}))
    train = source.train
    assert source.name == "pets"
    assert source.test is None
    assert source.loose == (str(tmp_path / "pets" / "loose.png"),)
    assert train.class_names == ("cat", "dog")
    assert [Path(train.name(i)).relative_to(tmp_path / "pets").as_posix() for i in range(3)] == [
        "cat/a.jpg",
        "cat/sub/deep/z.png",
        "dog/b.png",
    ]
    assert train.ids.tolist() == [0, 1, 2]
    assert train.labels.tolist() == [0, 0, 1]
    assert [train.read(i)[0, 0, 0] for i in range(3)] == [3, 2, 1]


def test_ids_are_ranks_of_the_sorted_paths(tmp_path: Path) -> None:
    # "a b/" sorts before "a/" and after "a!/": the order of paths is not the order of class names.
    tree = {"a/1": 1, "a b/2": 2, "a!/3": 3, "a/sub/4": 4, "b/0": 5}
    train = open_folder(make_tree(tmp_path, tree)).train
    assert isinstance(train.store, FileStore)
    assert list(train.store.paths) == sorted(tree)
    assert [train.class_names[k] for k in train.labels] == [path.split("/")[0] for path in sorted(tree)]


@given(st.lists(st.binary(max_size=9)))
def test_a_table_of_paths_has_any_that_a_disk_can_have(names: list[bytes]) -> None:
    paths = [os.fsdecode(name) for name in names]
    table = PathTable(paths)
    assert (list(table), len(table)) == (paths, len(paths))
    assert [table[i - len(paths)] for i in range(len(paths))] == paths


def test_a_table_of_paths_is_small() -> None:
    paths = [f"n{i % 1000:08d}/n{i % 1000:08d}_{i}.JPEG" for i in range(10_000)]
    assert len(pickle.dumps(PathTable(paths))) < 10_000 * (len(paths[-1]) + 8) + 1000


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation"])
def test_train_and_test_parts(tmp_path: Path, test_name: str) -> None:
    tree = {"train/a/1": 1, "train/b/1": 2, "train/c/1": 3, f"{test_name}/c/1": 4, f"{test_name}/b/1": 5}
    source = open_folder(make_tree(tmp_path, tree))
    assert source.test is not None
    assert source.test.class_names == source.train.class_names == ("a", "b", "c")
    assert source.test.labels.tolist() == [1, 2]
    assert [source.test.read(i)[0, 0, 0] for i in range(2)] == [5, 4]


def test_test_wins_over_val(tmp_path: Path) -> None:
    source = open_folder(make_tree(tmp_path, {"train/a/1": 1, "train/b/1": 1, "val/a/1": 2, "test/b/1": 3}))
    assert source.test is not None
    assert source.test.read(0)[0, 0, 0] == 3


def test_a_train_folder_alone_is_the_training_part(tmp_path: Path) -> None:
    source = open_folder(make_tree(tmp_path, {"train/a/1": 1, "train/b/1": 1}))
    assert source.train.class_names == ("a", "b")
    assert source.test is None


def test_train_may_be_the_name_of_a_class(tmp_path: Path) -> None:
    source = open_folder(make_tree(tmp_path, {"train/1": 1, "bus/1": 1, "test/1": 1}))
    assert source.train.class_names == ("bus", "test", "train")
    assert source.test is None


def test_train_with_folders_is_a_class_beside_others(tmp_path: Path) -> None:
    source = open_folder(make_tree(tmp_path, {"train/steam/1": 1, "bus/1": 1}))
    assert source.train.class_names == ("bus", "train")
    assert source.test is None


def test_loose_files_of_both_parts_are_told(tmp_path: Path) -> None:
    tree = {"train/a/1": 1, "train/x.png": 1, "train/Thumbs.db": 1, "test/a/1": 1, "test/y.png": 1}
    source = open_folder(make_tree(tmp_path, tree | {"train/.hidden": 1}))
    assert source.loose == (str(tmp_path / "train" / "x.png"), str(tmp_path / "test" / "y.png"))


def test_where_files_would_become_samples(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "parts", {"train/a/1": 1, "test/a/1": 1})
    for inside, expected in (("train/out", True), ("test/out", True), ("out", False), (".", False)):
        assert holds_samples_at(root, root / inside) is expected
    assert holds_samples_at(root / "train", root / "train" / "out")
    assert not holds_samples_at(tmp_path / "nowhere", tmp_path / "nowhere" / "out")


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cannot be listed: Permission denied") as caught:
        list_files(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_what_is_no_image_stays_a_sample(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a/1.png": 1, "b/1.png": 1})
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    train = open_folder(tmp_path).train
    assert len(train) == 4
    with pytest.raises(BadImage, match="cannot be read: No such file"):
        train.read(1)
    with pytest.raises(BadImage, match="not a JPEG"):
        train.read(2)


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put_image(elsewhere / "linked.png", 9)
    root = make_tree(tmp_path / "data", {"a/1.png": 1, "b/1.png": 1})
    (root / "a" / "loop").symlink_to(root / "a")
    (root / "a" / "up").symlink_to(root / "b")
    (root / "b" / "down").symlink_to(root / "a")
    (root / "b" / "file.png").symlink_to(elsewhere / "linked.png")
    (root / "c").symlink_to(elsewhere)
    assert list_files(root / "a") == ["1.png", "up/1.png", "up/file.png"]
    train = open_folder(root).train
    assert train.class_names == ("a", "b", "c")
    assert np.bincount(train.labels).tolist() == [3, 3, 1]


def test_a_link_upwards_does_not_make_all_classes_one(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "data", {"a/1.png": 1, "b/1.png": 1, "b/deep/2.png": 2})
    (root / "b" / "deep" / "up").symlink_to("../..")
    (root / "a" / "far").symlink_to(tmp_path)
    assert np.bincount(open_folder(root).train.labels).tolist() == [1, 2]


def test_many_linked_folders_are_listed_in_linear_time(tmp_path: Path) -> None:
    for k in range(12):
        put_image(tmp_path / f"d{k}" / "1.png", k)
        for other in range(12):
            (tmp_path / f"d{k}" / f"to{other}").symlink_to(tmp_path / f"d{other}")
    assert len(list_files(tmp_path)) == 12


def test_special_files_are_no_samples(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a/1.png": 1})
    os.mkfifo(tmp_path / "a" / "pipe")
    assert list_files(tmp_path) == ["a/1.png"]


@settings(max_examples=40, deadline=None)
@given(st.sets(st.text("ab./ é<>&'\"\n\\", min_size=1, max_size=6), min_size=1, max_size=4))
def test_any_folder_name_is_a_class(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    names = {name.replace("/", "-") for name in names if not name.startswith(".")} | {"<script>"}
    root = make_tree(tmp_path_factory.mktemp("names"), {f"{name}/1.png": 1 for name in names})
    train = open_folder(root).train
    assert len(train.class_names) == len(train) == len(names)
    assert all(name.isprintable() for name in train.class_names)
    assert {train.class_names[k] for k in train.labels} == set(train.class_names)
    assert all(train.read(i)[0, 0, 0] == 1 for i in range(len(train)))


def test_names_that_are_no_unicode_can_be_printed_and_read(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a/1.png": 1})
    os.rename(tmp_path / "a" / "1.png", os.fsencode(tmp_path / "a") + b"/\xff.png")
    train = open_folder(tmp_path).train
    assert train.name(0).encode().endswith(rb"\udcff.png")
    assert train.read(0)[0, 0, 0] == 1


def test_encoded_gives_the_original_bytes(tmp_path: Path) -> None:
    image = tmp_path / "a" / "x.jpg"
    image.parent.mkdir()
    Image.new("RGB", (9, 9), "red").save(image)
    store = open_folder(tmp_path).train.store
    assert isinstance(store, FileStore)
    assert store.encoded(0) == image.read_bytes()


def test_an_image_is_not_left_out_because_the_process_has_no_room(tmp_path: Path, monkeypatch) -> None:
    make_tree(tmp_path, {"a/1": 5, "a/2": 6})
    store = open_folder(tmp_path).train.store
    for number, kind in ((errno.EMFILE, OSError), (errno.ENOMEM, OSError), (errno.EIO, BadImage)):

        def fail(name: str, *_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number), name)

        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", fail)
            with pytest.raises(kind, match=os.strerror(number)):
                store.encoded(0)


def test_a_giant_file_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path, {"a/1": 5})
    monkeypatch.setattr(folder_module, "MAX_FILE_BYTES", 1 << 20)
    store = open_folder(tmp_path).train.store
    assert isinstance(store, FileStore)
    os.truncate(tmp_path / "a" / "1", 1 << 20)
    assert len(store.encoded(0)) == 1 << 20
    os.truncate(tmp_path / "a" / "1", 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match="larger than 1 MiB"):
            store.read(0)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("tree", "empty_folders", "message"),
    [
        ({}, [], "empty: give the folder that holds"),
        ({"loose.png": 1}, [], "no class folders in it: give the folder that holds"),
        ({"a/1": 1, "b/2": 1}, ["dogs"], "class 'dogs' has no files: add images or remove the folder"),
        ({"a/1": 1, "b/.x": 1}, [], "class 'b' has no files"),
        (
            {"train/a/1": 1, "train/b/1": 1, "test/z/1": 1},
            [],
            "1 classes are not in the training part ('z'): add them there or remove these folders",
        ),
        ({"train/a/1": 1, "train/b/1": 1}, ["test"], "test: empty"),
        ({"train/a/1": 1, "train/b/1": 1, "test/1.png": 1}, [], "test: no class folders in it"),
        ({"train/a/1": 1, "train/b/1": 1}, ["test/a"], "test: no files in its class folders"),
    ],
)
def test_unusable_folders(
    tmp_path: Path, tree: dict[str, int], empty_folders: list[str], message: str
) -> None:
    make_tree(tmp_path, tree)
    for name in empty_folders:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(DataError) as caught:
        open_folder(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        open_folder(tmp_path / "nowhere")
    put_image(tmp_path / "file.png", 1)
    with pytest.raises(DataError, match=r"file\.png: not a folder"):
        open_folder(tmp_path / "file.png")
