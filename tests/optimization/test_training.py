"""The second training on three kinds of 8-px pictures, with a bank that rotates and one that does not."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from pmal._engine.loop import TrainingSet
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import DataConfig, EncoderConfig, OptimizationConfig, Resources, RunConfig, TrainingConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.errors import DataError
from pmal.mining.prototypes import PrototypeSet
from pmal.optimization.distances import point_to_set_distance
from pmal.optimization.learner import PrototypeLearner, embed_prototypes
from pmal.optimization.training import PrototypeTrainingSet, make_prototype_learner, optimize_embedding
from tests.support.jobs import make_job

CPU = torch.device("cpu")
SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b", "c"), image_size=8, channels=1)
CONFIG = RunConfig(
    seed=4,
    data=DataConfig(augmentation="standard"),
    training=TrainingConfig(epochs=3, batch_size=8, learning_rate=0.05, precision="float32"),
)
FULL, ROTATING = OptimizationConfig(), OptimizationConfig(refresh=3)


def using(settings, config=None):
    """The whole configuration with these settings of the second training."""
    return dataclasses.replace(config or CONFIG, optimization=settings)


def with_training(**changes):
    return dataclasses.replace(CONFIG, training=dataclasses.replace(CONFIG.training, **changes))


def make_data(count=34, device=CPU):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    pictures = torch.randint(0, 90, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
    pictures[0::3, :, :, ::2] += 100  # upright stripes, level stripes, dark: a crop leaves them what they are
    pictures[1::3, :, ::2] += 100
    ids = 1000 - 7 * np.arange(count)  # neither positions nor sorted
    return TrainingSet(ResidentImages(pictures, device), labels.to(device), ids)


def make_prototypes(data, per_class=(3, 1, 2)):
    labels = data.labels.cpu()
    chosen = torch.cat([(labels == k).nonzero().flatten()[:count] for k, count in enumerate(per_class)])
    ranks = torch.cat([torch.arange(count) for count in per_class])
    zeros = torch.zeros(len(chosen), dtype=torch.float64)
    ids = torch.from_numpy(data.ids)[chosen]
    return PrototypeSet(ids, labels[chosen], zeros, zeros, ranks, num_classes=len(per_class))


@pytest.fixture
def data():
    return make_data()


@pytest.fixture
def first(data):
    torch.manual_seed(1)
    model = Classifier(SPEC)
    model.set_normalization(torch.tensor([0.3]), torch.tensor([0.2]))
    return model.eval()


def run(first, data, folder, settings=FULL, config=CONFIG, prototypes=None, log=None, checkpoint_seconds=1e9):
    session = Session(data.labels.device, Resources(checkpoint_seconds=checkpoint_seconds), Silent())
    if log is not None:
        session = session.logging_to(lambda **event: log.append(event))
    prototypes = prototypes or make_prototypes(data)
    job = make_job(using(settings, config), data=data, folder=folder, session=session)
    return optimize_embedding(first, prototypes, job)


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


class Killed(BaseException):
    """Stands for a process that is gone: nothing of ours runs after it."""


@pytest.fixture
def kill_at(monkeypatch):
    objective = PrototypeLearner.objective

    def arm(step):
        calls = iter(range(10**9))

        def dying(self, images, labels):
            if next(calls) == step:
                raise Killed
            return objective(self, images, labels)

        monkeypatch.setattr(PrototypeLearner, "objective", dying)

    yield arm
    monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [FULL, ROTATING], ids=["full", "rotating"])
@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("step", [0, 5, 11])
def test_killed_at_any_step_ends_with_the_same_bits(first, data, tmp_path, kill_at, settings, ema, step):
    config, whole_log, log = with_training(ema=ema), [], []
    whole = run(first, data, tmp_path / "whole", settings, config, log=whole_log)
    kill_at(step)
    with pytest.raises(Killed):
        run(first, data, tmp_path / "killed", settings, config, checkpoint_seconds=0)
    assert has_tensors(tmp_path / "killed" / "optimization" / "checkpoint") == (step > 0)
    kill_at(-1)
    assert same(run(first, data, tmp_path / "killed", settings, config, log=log), whole)
    assert [event.get("resumed_at_step") for event in log][: bool(step)] == [step] * bool(step)
    # The bank resumed, too: its figures belong to a whole, uninterrupted rotation.
    keys = ("epoch", "loss", "prototype_age", "prototype_drift")
    last, whole_last = ([event[key] for key in keys] for event in (log[-1], whole_log[-1]))
    assert last == whole_last


def test_done_is_loaded_and_leaves_the_weights_alone(first, data, tmp_path, kill_at):
    trained = run(first, data, tmp_path)
    assert sorted(file.name for file in (tmp_path / "optimization").iterdir()) == [
        "weights.json",
        "weights.safetensors",
    ]
    kill_at(0)
    assert same(run(first, data, tmp_path), trained)
    assert not trained.training


def test_a_warm_start_is_the_first_classifier_and_leaves_it_alone(first, data, tmp_path):
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    both = PrototypeTrainingSet(data.images, data.labels, data.ids, make_prototypes(data))
    learner = make_prototype_learner(first, both, using(FULL), flip=False, seed=1)
    assert same(learner.classifier, first)
    trained = run(first, data, tmp_path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items())
    assert not same(trained, first)


def test_a_start_from_scratch_has_new_weights_of_its_seed_and_the_same_normalization(first, data):
    both = PrototypeTrainingSet(data.images, data.labels, data.ids, make_prototypes(data))
    scratch = OptimizationConfig(init="scratch")
    one, again, other = (
        make_prototype_learner(first, both, using(scratch), flip=False, seed=seed).classifier
        for seed in (1, 1, 2)
    )
    assert same(one, again)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.head.weight, first.head.weight)
    assert torch.equal(one.mean, first.mean)
    assert torch.equal(one.std, first.std)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [FULL, ROTATING], ids=["full", "rotating"])
def test_training_brings_samples_to_their_prototypes(first, data, tmp_path, settings):
    log = []
    trained = run(first, data, tmp_path, settings, with_training(epochs=15), log=log)
    assert log[-1]["loss"] < 0.5 * log[0]["loss"]
    both = PrototypeTrainingSet(data.images, data.labels, data.ids, make_prototypes(data))
    mask = both.prototypes.mask
    margins = []
    for model in (first, trained):
        prototypes = embed_prototypes(model, both.prototype_images(), mask)
        d_NK = point_to_set_distance(embed_images(model, data.images)[0], prototypes, mask)
        own_N = d_NK.gather(1, data.labels[:, None])[:, 0]
        other_N = d_NK.scatter(1, data.labels[:, None], math.inf).amin(1)
        margins.append(other_N - own_N)
    assert margins[1].mean() > 0.3 > 0.1 > margins[0].mean()
    assert (margins[1] > 0).float().mean() > 0.95


def test_the_log_of_an_epoch_tells_how_old_the_prototypes_are(first, data, tmp_path):
    log = []
    run(first, data, tmp_path / "rotating", ROTATING, log=log)
    assert [event["prototype_age"] for event in log] == [0.5] * 3
    assert all(0 < event["prototype_drift"] < 2 for event in log)
    log.clear()
    run(first, data, tmp_path / "full", log=log)
    assert [event["prototype_age"] for event in log] == [0.0] * 3


def test_prototype_images_come_by_class_and_rank(data):
    both = PrototypeTrainingSet(data.images, data.labels, data.ids, make_prototypes(data))
    # The positions of the first samples of each class, in the order of the table.
    assert torch.equal(both.prototype_images(), data.images.images[[0, 3, 6, 1, 2, 5]])


def test_results_of_other_prototypes_are_refused(first, data, tmp_path, kill_at):
    others = make_prototypes(data, (2, 2, 2))
    run(first, data, tmp_path / "done")
    with pytest.raises(DataError, match="trained on other classes or images"):
        run(first, data, tmp_path / "done", prototypes=others)
    kill_at(4)
    with pytest.raises(Killed):
        run(first, data, tmp_path / "killed", checkpoint_seconds=0)
    with pytest.raises(DataError, match="belongs to other training data"):
        run(first, data, tmp_path / "killed", prototypes=others)


def test_prototypes_that_are_not_in_the_data_are_named(first, data, tmp_path):
    prototypes = make_prototypes(data)
    for ids in (prototypes.ids + 3, prototypes.ids.flip(0), prototypes.ids + 5000):
        strange = dataclasses.replace(prototypes, ids=ids)
        with pytest.raises(DataError, match=f"sample {ids[0]} is not a training image of its class"):
            run(first, data, tmp_path, prototypes=strange)
    fewer = make_prototypes(data, (2, 2))
    with pytest.raises(DataError, match="prototypes of 2 classes, but 3 are known"):
        run(first, data, tmp_path, prototypes=fewer)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [FULL, ROTATING], ids=["full", "rotating"])
def test_a_captured_training_does_what_the_cpu_does(first, tmp_path, settings):
    """The rotation and the cache move on inside a CUDA graph as they do outside of it."""
    config = dataclasses.replace(CONFIG, data=DataConfig(augmentation="none"))
    figures, said = {}, []
    for device in (CPU, torch.device("cuda")):
        log, data = [], make_data(device=device)
        session = Session(device, Resources(checkpoint_seconds=1e9), Silent())
        session = session.logging_to(lambda log=log, **event: log.append(event))
        session.display.say = said.append
        folder = tmp_path / str(device)
        job = make_job(using(settings, config), data=data, folder=folder, session=session)
        optimize_embedding(first.to(device), make_prototypes(data), job)
        figures[device] = log
    assert not said  # it says so where a step cannot be captured
    for cpu, gpu in zip(*figures.values(), strict=True):
        assert gpu["loss"] == pytest.approx(cpu["loss"], rel=0.05)
        assert gpu["prototype_age"] == cpu["prototype_age"]
        assert gpu["prototype_drift"] == pytest.approx(cpu["prototype_drift"], rel=0.1, abs=0.01)
