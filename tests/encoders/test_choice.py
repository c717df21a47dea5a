"""Which encoder images get that nobody has chosen one for."""

import numpy as np
import pytest

from pmal.data.samples import ArrayStore, BadImage, Samples, VectorStore
from pmal.encoders import choice as module
from pmal.encoders.choice import check_encoder, choose_encoder, typical_side
from pmal.errors import UsageError


def images(height, width=None):
    pixels = np.zeros((5, height, width or height, 3), np.uint8)
    return Samples.whole(ArrayStore("x", pixels), np.zeros(5, int), ("a",))


def test_photographs_get_a_pretrained_network_where_its_weights_are(monkeypatch):
    monkeypatch.setattr(module, "weights_missing", lambda name: None)
    assert choose_encoder(images(65), "cpu").name == "efficientnet_lite0"
    monkeypatch.setattr(module, "weights_missing", lambda name: "it is not there: fetch it")
    for device, name in (("cpu", "small"), ("cuda", "resnet18")):
        found = choose_encoder(images(65), device)
        assert found.name == name
        assert found.why.endswith("because it is not there: fetch it")


@pytest.mark.parametrize(("device", "name"), [("cpu", "small"), ("cuda", "oscri")])
def test_small_images_are_trained_on(device, name):
    found = choose_encoder(images(64, 200), device)
    assert (found.name, found.why) == (name, "images of 64 px, trained on your images alone")


def test_embeddings_are_taken_as_they_are():
    store = VectorStore("x", np.zeros((5, 7), np.float32))
    rows = Samples.whole(store, np.zeros(5, int), ("a",))
    assert choose_encoder(rows, "cpu").name == "precomputed"
    check_encoder(rows, "precomputed")
    with pytest.raises(UsageError, match="x: embeddings, but encoder small takes images: leave"):
        check_encoder(rows, "small")
    check_encoder(images(8), "small")


def test_the_typical_side_is_a_median_of_what_can_be_read():
    class Mixed(ArrayStore):
        def read(self, row):
            if row == 0:
                raise BadImage("broken")
            return np.zeros(((0, 10, 30, 500, 30)[row], 600, 3), np.uint8)

    store = Mixed("x", np.zeros((5, 1, 1, 3), np.uint8))
    assert typical_side(Samples.whole(store, np.zeros(5, int), ("a",))) == 30

    class Broken(ArrayStore):
        def read(self, row):
            raise BadImage("broken")

    store = Broken("x", np.zeros((5, 1, 1, 3), np.uint8))
    assert typical_side(Samples.whole(store, np.zeros(5, int), ("a",))) == 0
