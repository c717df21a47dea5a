"""What Python code may hand over, and what it is told where it may not."""

import numpy as np
import pytest
import torch

from pmal.data.arrays import ReadSamples, image_store, vector_store
from pmal.data.decoding.decode import encode_png
from pmal.data.decoding.fitting import ImageShape
from pmal.data.samples import Samples
from pmal.errors import DataError

GRAY = np.random.default_rng(0).integers(0, 256, (5, 9, 8), dtype=np.uint8)
CPU = torch.device("cpu")


def whole(store):
    return Samples.whole(store, np.zeros(len(store), np.int64), ("",))


def test_images_without_and_with_channels_are_read_as_they_are():
    store = image_store(GRAY)
    assert (len(store), store.name(3)) == (5, "X[3]")
    assert np.array_equal(store.read(3)[:, :, 0], GRAY[3])
    color = np.stack([GRAY] * 3, axis=3)
    assert np.array_equal(image_store(color, "new").read(1), color[1])
    assert np.array_equal(image_store(torch.from_numpy(GRAY)).read(1), store.read(1))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GRAY[0], r"shape \(9, 8\): one image\? pass X\[None\]"),
        (np.zeros((9, 9, 3), np.uint8), r"one image\? pass X\[None\]"),
        (np.zeros((2, 3, 9, 9), np.uint8), r"channels come last here: pass X.transpose\(0, 2, 3, 1\)"),
        (GRAY / 255, r"float64 of shape .* uint8 pixels, from 0 to 1 as \(255 \* X\)"),
        (GRAY.astype(int), "int64 .*: pass uint8 pixels, 0 to 255"),
        (np.zeros((0, 9, 9), np.uint8), r"shape \(0, 9, 9\): pass images of shape"),
        (np.zeros((2, 9, 9, 2), np.uint8), "with C = 1 or 3"),
        ([GRAY[0], GRAY[1][1:]], "pass samples of one shape"),
        ("photo.png", r"one path: pass a list, \['photo.png'\]"),
        (["photo.png", 3], r"X\[1\] is a int: in a list of paths"),
    ],
)
def test_other_images_are_refused_with_the_fix(images, message):
    with pytest.raises(DataError, match=message):
        image_store(images)


def test_vectors_are_copied_to_single_precision():
    given = np.arange(6.0).reshape(3, 2)
    store = vector_store(given)
    assert store.vectors.dtype == np.float32
    store.vectors[0] = 9
    assert given[0].tolist() == [0.0, 1.0]
    assert vector_store([[1, 2], [3, 4]]).vectors.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones(3), r"shape \(3,\): one sample\? pass X\[None\]"),
        (np.ones((2, 2, 2)), r"takes embeddings, numbers of shape \(N, D\)"),
        (np.ones((0, 2)), r"numbers of shape \(N, D\)"),
        (np.array([["a", "b"]]), r"numbers of shape \(N, D\)"),
        ([[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0]], r"X\[1\] has NaN or infinite values \(2 such samples\)"),
        ([[1.0], [1e39]], r"X\[1\] has NaN or infinite"),
    ],
)
def test_other_vectors_are_refused_by_sample(vectors, message):
    with pytest.raises(DataError, match=message):
        vector_store(vectors)


def test_paths_are_read_batch_by_batch_and_the_bad_one_is_named(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, pixels in zip(paths, GRAY, strict=True):
        path.write_bytes(encode_png(pixels[:8, :, None]))
    batches = ReadSamples(whole(image_store(paths)), ImageShape(8, 1), CPU)
    found = torch.cat(list(batches.stream([torch.tensor([4, 0]), torch.tensor([2])])))
    assert np.array_equal(found[:, 0].numpy(), GRAY[[4, 0, 2], :8])
    paths[2].write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"2\.png: not a JPEG"):
        list(batches.stream([torch.arange(5)]))
