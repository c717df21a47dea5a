import numpy as np
import pytest

from pmal.data.samples import ArrayStore, Samples, VectorStore
from pmal.encoders.choice import check_encoder, choose_encoder
from pmal.errors import UsageError


def samples(store):
    return Samples.whole(store, np.zeros(len(store), np.int64), ("a",))


def test_embeddings_choose_and_need_precomputed():
    rows = samples(VectorStore("e.npz", np.ones((3, 2), np.float32)))
    assert choose_encoder(rows, "cpu").name == "precomputed"
    check_encoder(rows, "precomputed")
    with pytest.raises(UsageError, match=r"e\.npz: embeddings, but encoder small takes images: leave"):
        check_encoder(rows, "small")


def test_images_take_every_encoder():
    check_encoder(samples(ArrayStore("X", np.zeros((3, 8, 8, 1), np.uint8))), "small")
