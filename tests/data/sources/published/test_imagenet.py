"""ImageNet's folders and ImageNet-LT's lists, in small."""

import os
from pathlib import Path

import pytest

from pmal.data.sources.published.imagenet import open_imagenet, open_imagenet_lt, read_list
from pmal.errors import DataError

TRAIN = """\
train/n01440764/n01440764_190.JPEG 0
train/n01443537/n01443537_1.JPEG 1
train/n01440764/n01440764_2.JPEG 0
"""
TEST = """\
val/n01443537/ILSVRC2012_val_00000236.JPEG 1
val/n01440764/ILSVRC2012_val_00000293.JPEG 0
"""
OPEN = """\
ILSVRC2010_val_00017130.JPEG -1
ILSVRC2010_val_00005387.JPEG -1
"""


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def write_imagenet(root: Path) -> Path:
    for list_text in (TRAIN, TEST):
        touch(*(root / line.split()[0] for line in list_text.splitlines()))
    return root


def write_lists(folder: Path, **changed: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in {"train": TRAIN, "test": TEST, "open": OPEN, **changed}.items():
        (folder / f"ImageNet_LT_{part}.txt").write_text(text)
    return folder


def write_open_set(folder: Path) -> Path:
    touch(*(folder / line.split()[0] for line in OPEN.splitlines()))
    return folder


def names(samples, root: Path) -> list[str]:
    return [Path(samples.name(i)).relative_to(root).as_posix() for i in range(len(samples))]


def refusal(path: Path, read, *arguments) -> str:
    with pytest.raises(DataError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_folders_become_ranked_classes(tmp_path):
    root = write_imagenet(tmp_path)
    touch(root / "test" / "ILSVRC2012_test_00000001.JPEG")  # the official test images have no labels
    source = open_imagenet(root, "imagenet-100")
    assert source.test is not None
    assert source.name == "imagenet-100"
    assert source.train.class_names == ("n01440764", "n01443537")
    assert names(source.train, root) == [
        "train/n01440764/n01440764_190.JPEG",
        "train/n01440764/n01440764_2.JPEG",
        "train/n01443537/n01443537_1.JPEG",
    ]
    assert source.train.labels.tolist() == [0, 0, 1]
    assert source.test.labels.tolist() == [0, 1]


def test_folders_that_are_missing_or_flat_are_named(tmp_path):
    refusal(tmp_path / "train", open_imagenet, tmp_path, "imagenet-100")
    write_imagenet(tmp_path)
    (tmp_path / "val").rename(tmp_path / "sorted")
    refusal(tmp_path / "val", open_imagenet, tmp_path, "imagenet-100")
    touch(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    assert "one folder for each wnid" in refusal(tmp_path / "val", open_imagenet, tmp_path, "imagenet-100")
    (tmp_path / "val" / "n01440764").mkdir()
    assert "hold no images" in refusal(tmp_path / "val", open_imagenet, tmp_path, "imagenet-100")


def test_a_validation_class_that_is_not_trained_is_named(tmp_path):
    touch(write_imagenet(tmp_path) / "val" / "n09999999" / "a.JPEG")
    refusal(tmp_path / "val" / "n09999999", open_imagenet, tmp_path, "imagenet-100")


def test_lists_keep_their_order_and_labels(tmp_path):
    root = write_imagenet(tmp_path / "imagenet")
    lists = write_lists(tmp_path / "lt")
    write_open_set(lists / "ImageNet_LT_open")
    source = open_imagenet_lt(lists, [tmp_path / "nowhere", root])
    assert source.test is not None
    assert source.foreign is not None
    assert names(source.train, root) == [line.split()[0] for line in TRAIN.splitlines()]
    assert source.train.labels.tolist() == [0, 1, 0]
    assert source.train.class_names == ("n01440764", "n01443537")
    assert names(source.test, root) == [line.split()[0] for line in TEST.splitlines()]
    assert source.test.labels.tolist() == [1, 0]
    assert names(source.foreign, lists / "ImageNet_LT_open") == [
        line.split()[0] for line in OPEN.splitlines()
    ]
    assert source.foreign.labels.tolist() == [0, 0]
    assert source.foreign.class_names == ("open",)


def test_the_open_set_may_be_absent_and_may_lie_in_another_tree(tmp_path):
    root = write_imagenet(tmp_path / "imagenet")
    lists = write_lists(tmp_path / "lt")
    message = refusal(lists / "ImageNet_LT_open.txt", open_imagenet_lt, lists, [root])
    assert "ILSVRC2010_val_00017130.JPEG is in none of" in message
    other = write_open_set(tmp_path / "2010")
    source = open_imagenet_lt(lists, [root, other])
    assert source.foreign is not None
    assert names(source.foreign, other)[0] == "ILSVRC2010_val_00017130.JPEG"
    (lists / "ImageNet_LT_open.txt").unlink()
    assert open_imagenet_lt(lists, [root]).foreign is None


def test_images_that_are_nowhere_are_named(tmp_path):
    lists = write_lists(tmp_path / "lt")
    message = refusal(
        lists / "ImageNet_LT_train.txt", open_imagenet_lt, lists, [tmp_path / "a", tmp_path / "b"]
    )
    assert "train/n01440764/n01440764_190.JPEG is in none of" in message
    assert str(tmp_path / "b") in message


@pytest.mark.parametrize(
    "name",
    [
        "../secret.JPEG",
        "train/../../secret.JPEG",
        "/etc/passwd",
        "train\\..\\..\\x",
        "C:/x.JPEG",
        "\\\\host\\x",
        "..",
    ],
)
def test_paths_that_escape_are_refused(tmp_path, name):
    path = tmp_path / "list.txt"
    path.write_text(f"train/a/b.JPEG 0\n{name} 1\n")
    assert "line 2 leaves the image folder" in refusal(path, read_list, path)


def test_dots_and_spaces_inside_names_are_no_escape(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("train/a/b..c.JPEG 0\ntrain/..a/two words.JPEG 12\r\n")
    paths, labels = read_list(path)
    assert paths == ["train/a/b..c.JPEG", "train/..a/two words.JPEG"]
    assert labels.tolist() == [0, 12]


@pytest.mark.parametrize(
    "line", ["", "train/a.JPEG", "train/a.JPEG x", "train/a.JPEG 1.5", " 3", "a 99999999999999999999"]
)
def test_a_malformed_line_is_named(tmp_path, line):
    path = tmp_path / "list.txt"
    path.write_text(f"train/a/b.JPEG 0\n{line}\ntrain/a/c.JPEG 0\n")
    assert "line 2 is not 'path label'" in refusal(path, read_list, path)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00\x81"])
def test_a_list_that_is_missing_empty_or_binary_is_named(tmp_path, content):
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    refusal(path, read_list, path)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ("train/a/1.JPEG 0\ntrain/b/1.JPEG 2\n", "one to one"),
        ("train/a/1.JPEG 0\ntrain/b/1.JPEG 0\n", "one to one"),
        ("train/a/1.JPEG 0\ntrain/a/2.JPEG 1\n", "one to one"),
        ("train/a/1.JPEG -1\ntrain/b/1.JPEG 0\n", "one to one"),
    ],
)
def test_labels_and_folders_must_match(tmp_path, train, reason):
    lists = write_lists(tmp_path / "lt", train=train)
    assert reason in refusal(lists / "ImageNet_LT_train.txt", open_imagenet_lt, lists, [tmp_path])


def test_a_test_label_outside_the_training_labels_is_named(tmp_path):
    root = write_imagenet(tmp_path / "imagenet")
    lists = write_lists(tmp_path / "lt", test=TEST + "val/n01440764/x.JPEG 2\n")
    message = refusal(lists / "ImageNet_LT_test.txt", open_imagenet_lt, lists, [root])
    assert "label 2 of image 2 is not in 0..1" in message


@pytest.mark.slow
def test_a_list_as_long_as_imagenet_is_opened_without_a_look_at_each_image(tmp_path, monkeypatch):
    count = 1_281_167
    lists = write_lists(tmp_path, test="train/n00000000/0.JPEG 0\n")
    (lists / "ImageNet_LT_open.txt").unlink()
    with (lists / "ImageNet_LT_train.txt").open("w") as file:
        file.writelines(f"train/n{i % 1000:08}/{i}.JPEG {i % 1000}\n" for i in range(count))
    touch(tmp_path / "train" / "n00000000" / "0.JPEG")
    looked, stat = [], os.stat
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path, **how: looked.append(path) or stat(path, **how))
        source = open_imagenet_lt(lists, [tmp_path])
    assert 0 < len(looked) < 10
    assert len(source.train) == count
    assert len(source.train.class_names) == 1000
    assert source.train.name(count - 1).endswith("/train/n00000166/1281166.JPEG")
    assert source.train.labels[count - 1] == 166
