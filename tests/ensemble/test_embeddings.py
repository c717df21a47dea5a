import numpy as np
import pytest
import torch

from pmal._runtime.session import open_session
from pmal.config import EncoderConfig, Resources
from pmal.data.feeding.batches import ResidentImages
from pmal.data.feeding.parts import Part
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble import embeddings
from pmal.ensemble.classifier import Classifier, ClassifierSpec, load_classifier, save_classifier
from pmal.ensemble.embeddings import embed_images, embed_training_set, stored_embeddings
from pmal.errors import DataError
from tests.support.jobs import make_job

CPU = torch.device("cpu")
SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), image_size=8, channels=1)


@pytest.fixture
def train():
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8)
    samples = Samples.whole(ArrayStore("x", pixels), np.arange(30) % 3, SPEC.class_names)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return Part(samples, ResidentImages(images, torch.device("cpu")), ())


@pytest.fixture
def session():
    return open_session(Resources(device="cpu"))


def make(seed, bias=True):
    torch.manual_seed(seed)
    spec = ClassifierSpec(EncoderConfig("small", bias=bias), SPEC.class_names, 8, 1)
    return Classifier(spec).eval()


def test_embeddings_do_not_depend_on_the_batch_size(train, monkeypatch):
    model = make(0)
    whole, _ = embed_images(model, train.images)
    monkeypatch.setattr(embeddings, "CPU_BATCH", 7)
    z, logits = embed_images(model, train.images)
    torch.testing.assert_close(z, whole)
    torch.testing.assert_close(logits, z @ model.head.weight.T + model.head.bias)


def test_batch_norm_does_not_see_the_batch_even_of_a_network_in_training(train):
    expected = embed_images(make(0), train.images)[0]
    assert torch.equal(embed_images(make(0).train(), train.images)[0], expected)


@pytest.mark.parametrize("bias", [True, False])
def test_spaces_are_kept_and_loaded(train, session, tmp_path, bias):
    models = [make(0, bias), make(1, bias)]
    first = embed_training_set(models, make_job(train=train, folder=tmp_path, session=session))
    assert all(space.fresh for space in first)
    torch.testing.assert_close(first[1].logits, embed_images(models[1], train.images)[1])
    again = embed_training_set(models, make_job(train=train, folder=tmp_path, session=session))
    assert not any(space.fresh for space in again)
    assert all(torch.equal(a, b) for a, b in zip(first[0].space, again[0].space, strict=True))


def test_spaces_of_other_images_or_weights_are_made_anew(train, session, tmp_path):
    embed_training_set([make(0)], make_job(train=train, folder=tmp_path, session=session))
    fewer = Part(train.samples.at(np.arange(29)), ResidentImages(train.images.images[:29], CPU), ())
    [space] = embed_training_set([make(0)], make_job(train=fewer, folder=tmp_path, session=session))
    assert space.fresh
    assert len(space.z_ND) == 29
    [space] = embed_training_set([make(1)], make_job(train=fewer, folder=tmp_path, session=session))
    assert space.fresh
    others = Part(train.samples.at(np.arange(1, 30)), fewer.images, ())  # the same pixels by other ids
    [space] = embed_training_set([make(1)], make_job(train=others, folder=tmp_path, session=session))
    assert space.fresh


def test_stored_spaces_are_there_all_or_not_at_all(train, session, tmp_path):
    models = [make(0), make(1)]
    embedded = embed_training_set(models[:1], make_job(train=train, folder=tmp_path, session=session))
    assert stored_embeddings(models, make_job(train=train, folder=tmp_path, session=session)) is None
    [found] = stored_embeddings(models[:1], make_job(train=train, folder=tmp_path, session=session))
    assert torch.equal(found.z_ND, embedded[0].z_ND)


def test_a_classifier_survives_saving(train, tmp_path):
    model = make(3)
    model.set_normalization(torch.tensor([0.3]), torch.tensor([0.2]))
    save_classifier(tmp_path / "weights", model, "digest")
    loaded = load_classifier(tmp_path / "weights", CPU, SPEC.class_names, "digest")
    assert loaded.spec == model.spec
    assert torch.equal(embed_images(loaded, train.images)[1], embed_images(model, train.images)[1])


def test_weights_of_another_network_are_refused(tmp_path):
    save_classifier(tmp_path / "weights", make(0), "digest")
    with pytest.raises(DataError, match="other classes or images"):
        load_classifier(tmp_path / "weights", CPU, ("a", "b", "d"))
    with pytest.raises(DataError, match="other classes or images"):
        load_classifier(tmp_path / "weights", CPU, SPEC.class_names, "another digest")
    text = (tmp_path / "weights.json").read_text().replace('"small"', '"oscri"')
    (tmp_path / "weights.json").write_text(text)
    with pytest.raises(DataError, match="another network"):
        load_classifier(tmp_path / "weights", CPU, SPEC.class_names)
