"""What a finished model keeps: no more embeddings than it may, pictures that people can see."""

import numpy as np
import torch

from pmal._runtime.ranks import ALONE
from pmal.config import EncoderConfig
from pmal.data.batches import ResidentImages
from pmal.data.parts import Part
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.mining import PrototypeSet
from pmal.rejection import building
from pmal.rejection.model import Prototype


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


def test_held_out_images_count_for_the_class_that_they_are_taken_for():
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), 12, 1)).eval()
    pixels = torch.randint(0, 256, (15, 1, 12, 12), dtype=torch.uint8)
    store = ArrayStore("x", pixels.permute(0, 2, 3, 1).numpy())
    samples = Samples.whole(store, np.arange(15) % 3, ("a", "b", "c"))
    part = Part(samples, ResidentImages(pixels, torch.device("cpu")), ())
    found = building._calibrate(network, None, part, lambda n: None, ALONE)
    with torch.no_grad():
        z_BD, logits_BK = network.embed(pixels)
    assert torch.equal(found.predictions, logits_BK.argmax(dim=1))
    assert found.labels.tolist() == (np.arange(15) % 3).tolist()
    torch.testing.assert_close(found.z, z_BD)
    torch.testing.assert_close(found.scores["logit"], -logits_BK.double().amax(dim=1))


def test_people_find_each_prototype_with_its_quality_and_gap():
    ids, log_r, gap = [7, 3, 9], [-0.1, -0.2, -0.3], [5.0, 4.0, 3.0]
    numbers = [torch.tensor(column, dtype=torch.float64) for column in (log_r, gap)]
    labels, rank = torch.tensor([0, 0, 2]), torch.tensor([0, 1, 0])
    mined = PrototypeSet(torch.tensor(ids), labels, *numbers, rank, 3, files=("x", "y", "z"))
    first, second, third = map(Prototype, ids, "xyz", log_r, gap)
    assert building._gallery(mined) == ((first, second), (), (third,))


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
