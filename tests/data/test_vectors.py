"""Embeddings in the place of images, on their way through the data stage."""

import numpy as np
import pytest
import torch

from pmal._runtime.session import open_session
from pmal.config import DataConfig, Resources
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.data.feeding.augmentation import augment, channel_statistics, normalize
from pmal.data.feeding.parts import image_shape, open_part, training_statistics
from pmal.data.samples import BadImage, Samples, VectorStore
from pmal.errors import DataError, UsageError

VECTORS = np.random.default_rng(0).normal([0.0, 1e4, -3.0], [1.0, 0.1, 5.0], size=(700, 3)).astype(np.float32)
SAMPLES = Samples.whole(VectorStore("X", VECTORS), np.arange(700) % 2, ("a", "b"))


def test_a_vector_is_one_pixel():
    assert image_shape(SAMPLES, DataConfig()) == (1, 3, "bilinear")
    loaded = load_images(SAMPLES.at(np.array([5, 2])), ImageShape(1, 3))
    assert torch.equal(loaded.images[:, :, 0, 0], torch.from_numpy(VECTORS[[5, 2]]))
    assert SAMPLES.name(2) == "X[2]"
    with pytest.raises(BadImage, match="no pixels"):
        SAMPLES.read(2)


def test_vectors_are_never_streamed():
    session = open_session(Resources(device="cpu", memory_limit=0.0))
    part = open_part("train", SAMPLES, ImageShape(1, 3), session)
    assert len(part.images) == 700
    assert part.images.fingerprint()


@pytest.mark.parametrize("batch", [1, 64, 700])
def test_statistics_against_numpy(batch):
    mean, std = channel_statistics(torch.from_numpy(VECTORS)[:, :, None, None].split(batch))
    expected = VECTORS.astype(np.float64)
    np.testing.assert_allclose(mean.numpy(), expected.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), expected.std(axis=0), rtol=1e-6)


def test_a_channel_that_hardly_changes_counts_as_constant():
    x = torch.full((100, 2, 1, 1), 1e4)
    x[::2, 1] = 1e4 + 1e-3  # one step of single precision
    mean, std = channel_statistics(x.split(30))
    assert std.tolist() == [1.0, 1.0]
    assert normalize(x, mean, std).abs().max() < 1e-2


def test_vectors_keep_their_scale_and_are_not_augmented():
    part = open_part("train", SAMPLES, ImageShape(1, 3), open_session(Resources(device="cpu")))
    mean, std = training_statistics(part.images)
    x = augment(torch.from_numpy(VECTORS)[:, :, None, None], "none", mean, std, flip=True)
    torch.testing.assert_close(x.mean(dim=(0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-2)
    torch.testing.assert_close(x.std(dim=(0, 2, 3)), torch.ones(3), rtol=1e-2, atol=0)
    with pytest.raises(UsageError, match="'strong' changes pixels: embeddings take 'none'"):
        augment(x, "strong", mean, std, flip=False)


def test_rows_that_are_not_finite_are_set_aside():
    vectors = VECTORS.copy()
    vectors[3, 1], vectors[9] = np.nan, np.inf
    samples = Samples.whole(VectorStore("X", vectors), np.arange(700) % 2, ("a", "b"))
    loaded = load_images(samples, ImageShape(1, 3))
    assert [(bad.id, bad.name, bad.reason) for bad in loaded.quarantine] == [
        (3, "X[3]", "NaN or infinite values"),
        (9, "X[9]", "NaN or infinite values"),
    ]
    assert loaded.images.isfinite().all()
    assert len(loaded.images) == len(loaded.samples) == 698
    part = open_part("train", samples, ImageShape(1, 3), open_session(Resources(device="cpu")))
    assert part.quarantine()["readable"] == 698


def test_too_many_of_them_are_an_error():
    vectors = VECTORS.copy()
    vectors[:200] = np.nan
    samples = Samples.whole(VectorStore("X", vectors), np.arange(700) % 2, ("a", "b"))
    with pytest.raises(DataError, match=r"200 of 700 rows unreadable \(first: X\[0\]: NaN"):
        open_part("train", samples, ImageShape(1, 3), open_session(Resources(device="cpu")))


def test_a_class_of_nothing_else_is_an_error():
    vectors = VECTORS.copy()
    vectors[0] = np.nan
    samples = Samples.whole(VectorStore("X", vectors), (np.arange(700) > 0).astype(int), ("a", "b"))
    with pytest.raises(DataError, match="no row of class 'a' is readable"):
        open_part("train", samples, ImageShape(1, 3), open_session(Resources(device="cpu")))


def test_a_model_of_another_width_or_of_images_refuses_them():
    with pytest.raises(DataError, match="embeddings of 3 numbers, but the model takes 4"):
        load_images(SAMPLES, ImageShape(1, 4))
    with pytest.raises(UsageError, match="X: embeddings, but the model takes images of 28 px"):
        load_images(SAMPLES, ImageShape(28, 3))


def test_images_are_no_embeddings(tmp_path):
    from pmal.data.decoding.decode import encode_png
    from pmal.data.sources.folder import FileStore

    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((8, 8, 3), np.uint8)))
    samples = Samples.whole(FileStore(str(tmp_path), ("a.png",)), np.zeros(1, np.int64), ("a",))
    with pytest.raises(UsageError, match="the model takes embeddings of 64 numbers, not images"):
        load_images(samples, ImageShape(1, 64))
