"""What a finished model keeps: no more embeddings than it may, pictures that people can see."""

import torch

from pmal._runtime.ranks import ALONE
from pmal.config import EncoderConfig
from pmal.data.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection import building


def test_the_bank_is_evenly_spaced_where_there_are_too_many_images(monkeypatch):
    monkeypatch.setattr(building, "BANK_LIMIT", 5)
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 12, 1)).eval()
    images = torch.randint(0, 256, (21, 1, 12, 12), dtype=torch.uint8)
    resident = ResidentImages(images, torch.device("cpu"))
    found = building._training_embeddings(network, resident, lambda n: None, ALONE)
    with torch.no_grad():
        expected, _ = network.embed(images[[0, 5, 10, 15, 20]])
    torch.testing.assert_close(found, expected)


def test_large_pictures_are_made_small_and_small_ones_stay():
    large = torch.zeros(2, 3, 128, 128, dtype=torch.uint8)
    large[:, :, :64] = 200
    small = building.thumbnails(large)
    assert small.shape == (2, 3, 64, 64)
    assert small.dtype == torch.uint8
    assert (small[:, :, :32] == 200).all()
    assert (small[:, :, 32:] == 0).all()
    for kept in (small, torch.randn(2, 9, 1, 1)):
        assert building.thumbnails(kept) is kept
