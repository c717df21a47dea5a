"""The classifiers of a run: one after another or side by side, the same weights."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from pmal._engine.loop import TrainingSet
from pmal._runtime.processes.ranks import RankGroup
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import EncoderConfig, Resources, RunConfig, build
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble import classifiers
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.classifiers import networks_at_once, train_classifiers
from tests.support.jobs import make_job

CPU = torch.device("cpu")
SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b"), 8, 1)
CONFIG = build(
    RunConfig, {"ensemble": {"size": 3}, "training": {"epochs": 2, "batch_size": 8, "precision": "float32"}}
)


@pytest.fixture
def data():
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    return TrainingSet(ResidentImages(images, CPU), torch.arange(20) % 2, np.arange(20))


def run(data, folder, config=CONFIG):
    stages, display = [], Silent()
    stage = display.stage
    display.stage = lambda name, *rest: stages.append(name) or stage(name, *rest)
    session = Session(CPU, Resources(), display)
    job = make_job(config, data=data, spec=SPEC, flip=True, folder=folder, session=session)
    found = train_classifiers(job)
    return found, stages


def test_side_by_side_they_are_those_of_one_after_another(data, tmp_path, monkeypatch):
    expected, stages = run(data, tmp_path / "one")
    assert stages == ["classifier 0", "classifier 1", "classifier 2"]
    monkeypatch.setattr(classifiers, "networks_at_once", lambda *_: 2)
    found, stages = run(data, tmp_path / "two")
    assert stages == ["classifiers 0, 1", "classifier 2"]
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert not list(tmp_path.glob("**/checkpoint*"))


def test_each_has_its_own_start_and_all_follow_the_seed_and_the_pixels(data, tmp_path):
    def first_weights(seed, folder):
        config = dataclasses.replace(CONFIG, seed=seed)
        return [model.head.weight for model in run(data, tmp_path / folder, config)[0]]

    found, again, other = first_weights(0, "a"), first_weights(0, "b"), first_weights(1, "c")
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    different = [*found, *other]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(different, 2))
    model = run(data, tmp_path / "a")[0][0]
    pixels = data.images.images.double() / 255
    torch.testing.assert_close(model.mean.double(), pixels.mean()[None], rtol=1e-6, atol=0)
    torch.testing.assert_close(model.std.double(), pixels.std(correction=0)[None], rtol=1e-6, atol=0)


def test_those_that_are_done_are_left_out(data, tmp_path, monkeypatch):
    monkeypatch.setattr(classifiers, "networks_at_once", lambda *_: 2)
    run(data, tmp_path)
    for file in (tmp_path / "classifiers" / "0").iterdir():
        file.unlink()
    found, stages = run(data, tmp_path)
    assert stages == ["classifier 0"]
    for file in [*(tmp_path / "classifiers" / "0").iterdir(), *(tmp_path / "classifiers" / "2").iterdir()]:
        file.unlink()
    again, stages = run(data, tmp_path)
    assert stages == ["classifiers 0, 2"]
    for ours, theirs in zip(found, again, strict=True):
        assert torch.equal(ours.head.weight, theirs.head.weight)


def test_small_networks_alone_on_a_gpu_train_side_by_side(data):
    gpu = Session(torch.device("cuda"), Resources(), Silent())
    assert networks_at_once(SPEC, CONFIG.training, data, gpu) == 2
    assert networks_at_once(SPEC, CONFIG.training, data, dataclasses.replace(gpu, device=CPU)) == 1
    shared = dataclasses.replace(gpu, ranks=RankGroup(0, 2))
    assert networks_at_once(SPEC, CONFIG.training, data, shared) == 1
    streamed = dataclasses.replace(data, images=list(range(20)))
    assert networks_at_once(SPEC, CONFIG.training, streamed, gpu) == 1


@pytest.mark.parametrize(
    ("encoder", "image_size", "batch_size", "expected"),
    [("oscri", 32, 128, 2), ("wide_resnet", 32, 128, 1), ("resnet18", 224, 256, 1)],
)
def test_which_networks_fill_a_gpu(encoder, image_size, batch_size, expected):
    images = torch.empty(256, 1, dtype=torch.uint8)
    data = TrainingSet(ResidentImages(images, CPU), torch.zeros(256), np.arange(256))
    spec = ClassifierSpec(EncoderConfig(encoder), ("a", "b"), image_size, 3)
    config = dataclasses.replace(CONFIG.training, batch_size=batch_size)
    session = Session(torch.device("cuda"), Resources(), Silent())
    assert networks_at_once(spec, config, data, session) == expected
