"""TinyImageNet's official tree in small: the same file names, three classes."""

from pathlib import Path

import numpy as np
import pytest

from pmal.data.sources.published.tinyimagenet import open_tinyimagenet
from pmal.errors import DataError
from tests.data.sources.published.tinyimagenet_tree import VAL, WNIDS, write_tree

RANK = {"n01443537": 0, "n02124075": 1, "n12267677": 2}


def refusal(root: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_tinyimagenet(root)
    message = str(caught.value)
    assert str(root) in message
    assert "\n" not in message
    return message


def test_labels_are_ranks_and_every_image_has_its_own(tmp_path):
    source = open_tinyimagenet(write_tree(tmp_path))
    assert source.name == "tinyimagenet"
    assert source.train.class_names == tuple(sorted(WNIDS))
    assert source.test is not None
    by_gray = {int(source.train.read(i).mean()): source.train.labels[i] for i in range(len(source.train))}
    assert by_gray == {10 * i + j: RANK[wnid] for i, wnid in enumerate(WNIDS) for j in range(2)}
    for i in range(len(source.test)):
        image = Path(source.test.name(i)).name
        assert source.test.labels[i] == RANK[VAL[image]]
        assert int(source.test.read(i).mean()) == 100 + list(VAL).index(image)
    assert len(source.test) == 4


def test_ids_follow_sorted_names(tmp_path):
    source = open_tinyimagenet(write_tree(tmp_path))
    assert source.test is not None
    for samples in (source.train, source.test):
        names = [samples.name(i) for i in range(len(samples))]
        assert names == sorted(names)
        np.testing.assert_array_equal(samples.ids, np.arange(len(samples)))


def test_a_class_without_training_images_keeps_its_label(tmp_path):
    root = write_tree(tmp_path)
    for file in (root / "train" / "n02124075" / "images").iterdir():
        file.unlink()
    source = open_tinyimagenet(root)
    assert len(source.train.class_names) == 3
    assert sorted(set(source.train.labels.tolist())) == [0, 2]


def test_an_image_without_annotation_is_named(tmp_path):
    root = write_tree(tmp_path)
    annotations = root / "val" / "val_annotations.txt"
    lines = annotations.read_text().splitlines(keepends=True)
    annotations.write_text("".join(lines[:1] + lines[2:]))
    message = refusal(root)
    assert "no line for 1 images: val_1.JPEG" in message
    assert "val_annotations.txt" in message


def test_an_annotation_without_image_is_named(tmp_path):
    root = write_tree(tmp_path)
    for image in ("val_0.JPEG", "val_10.JPEG"):
        (root / "val" / "images" / image).unlink()
    assert "for 2 images: val_0.JPEG, val_10.JPEG" in refusal(root)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("val_0.JPEG\tn99999999\t0\t0\t1\t1", "line 5 names no class of wnids.txt"),
        ("val_0.JPEG", "line 5 names no class of wnids.txt"),
        ("", "line 5 names no class of wnids.txt"),
        ("val_0.JPEG\tn01443537\t0\t0\t1\t1", "line 5 gives val_0.JPEG a second class"),
    ],
)
def test_a_wrong_annotation_is_named(tmp_path, line, reason):
    annotations = write_tree(tmp_path) / "val" / "val_annotations.txt"
    annotations.write_text(annotations.read_text() + line + "\n")
    assert reason in refusal(tmp_path)


@pytest.mark.parametrize("file", ["wnids.txt", "val/val_annotations.txt"])
def test_a_list_that_is_missing_or_binary_is_named(tmp_path, file):
    root = write_tree(tmp_path)
    (root / file).write_bytes(b"\xff\xfe\x00\x81")
    assert str(root / file) in refusal(root)
    (root / file).write_bytes(b"")
    refusal(root)
    (root / file).unlink()
    assert f"{root / file}: cannot be read" in refusal(root)


@pytest.mark.parametrize("part", ["train", "val/images"])
def test_a_part_without_images_is_named(tmp_path, part):
    root = write_tree(tmp_path)
    (root / part).rename(root / "elsewhere")
    assert str(root / part) in refusal(root)
    (root / part).mkdir()
    assert str(root / part) in refusal(root)
