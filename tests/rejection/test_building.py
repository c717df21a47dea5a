"""What a finished model keeps: no more embeddings than it may, pictures that people can see."""

import numpy as np
import pytest
import torch

from pmal._engine.loop import TrainingSet
from pmal._runtime.processes.ranks import ALONE
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import EncoderConfig, Resources, RunConfig, build
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import Part
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.mining.prototypes import PrototypeSet
from pmal.optimization.learned import Learned
from pmal.rejection import building
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from tests.support.jobs import make_job

CPU = torch.device("cpu")
NAMES = ("a", "b", "c")


def test_held_out_images_count_for_the_class_that_they_are_taken_for():
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), NAMES, 12, 1)).eval()
    pixels = torch.randint(0, 256, (15, 1, 12, 12), dtype=torch.uint8)
    model = OpenSetModel(network, NAMES, Rule("logit"))
    found = building._calibrate(model, images_of(pixels), lambda n: None, ALONE)
    with torch.no_grad():
        z_BD, logits_BK = network.embed(pixels)
    assert torch.equal(found.predictions, logits_BK.argmax(dim=1))
    assert found.labels.tolist() == (np.arange(15) % 3).tolist()
    torch.testing.assert_close(found.z, z_BD)
    torch.testing.assert_close(found.scores["logit"], -logits_BK.double().amax(dim=1))


def images_of(pixels, classes=3):
    labels = np.arange(len(pixels)) % classes
    samples = Samples.whole(ArrayStore("x", pixels.permute(0, 2, 3, 1).numpy()), labels, NAMES[:classes])
    return Part(samples, ResidentImages(pixels, CPU), ())


@pytest.mark.parametrize("alike", [False, True])
def test_a_model_has_the_rule_and_the_distance_of_its_settings(alike):
    """Where held-out images are all alike there is no combined score: neighbors decides, as is said."""
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), NAMES, 12, 1)).eval()
    pixels = torch.randint(0, 256, (30, 1, 12, 12), dtype=torch.uint8)
    train, held_out = (
        images_of(pixels[:15]),
        images_of(pixels[15:16].expand(15, -1, -1, -1) if alike else pixels[15:]),
    )
    data = TrainingSet(train.images, train.labels(CPU), train.samples.ids)
    zeros = torch.zeros(3, dtype=torch.float64)
    mined = PrototypeSet(torch.arange(3), torch.arange(3), zeros, zeros, torch.zeros(3).long(), 3)
    rejection = {"score": "combined", "accept": 0.8, "per_class": True}
    config = build(RunConfig, {"rejection": rejection, "optimization": {"distance": "nearest"}})
    said = []
    display = Silent()
    display.say = said.append
    job = make_job(config, data=data, session=Session(CPU, Resources(), display))
    model = building.build_model(Learned(network, network, mined), held_out, job)
    assert model.rule == Rule("neighbors" if alike else "combined", 0.8, per_class=True)
    assert model.reference.distance == "nearest"
    assert len(said) == alike
    torch.testing.assert_close(model.reference.prototypes_KTD[:, 0], network.embed(pixels[:3])[0].detach())


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
