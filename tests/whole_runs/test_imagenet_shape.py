"""Every stage on a set in the shape of ImageNet-LT: large pictures, a long tail, five of the last class."""

import json

import numpy as np
import pytest
import torch

from benchmarks.synthetic import long_tail, write_folder
from pmal import pipeline
from pmal._runtime.session import open_session
from pmal._runtime.tensors import load_tensors
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.data.splits.task import open_task
from pmal.mining.prototypes import PrototypeSet
from pmal.rejection.bundle.saving import load_model

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
PER_CLASS = long_tail(8, 40, 5)
UNKNOWN = (2, 5)
KNOWN = tuple(label for label in range(8) if label not in UNKNOWN)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet") / "tiny"
    names = write_folder(folder, PER_CLASS, size=(150, 110), test_per_class=4)
    (folder / "train" / names[0] / f"{names[0]}_7.JPEG").write_bytes(b"\xff\xd8\xff, and no more")
    tiny = {
        "data": {"source": str(folder), "known": [names[label] for label in KNOWN], "image_size": 32},
        "encoder": {"name": "small"},
        "training": {"epochs": 1, "batch_size": 32},
        "mining": {"per_class": 6},
    }
    return build(RunConfig, merge(read_recipe("imagenet-lt"), tiny))


@pytest.fixture(scope="module")
def runs(config, tmp_path_factory):
    """Streamed, streamed and kept decoded, and in memory."""
    found = {}
    for name, limit in (("streamed", 0.0), ("kept", 0.0), ("resident", 8.0)):
        out = tmp_path_factory.mktemp("runs") / name
        cache = str(tmp_path_factory.mktemp("cache")) if name == "kept" else None
        resources = Resources(device="cpu", memory_limit=limit, workers=1, cache=cache)
        found[name] = out, pipeline.fit(config, out, open_session(resources))
    return found


def test_no_class_of_the_tail_is_left_without_training_images(config):
    task = open_task(config.data, None)
    learned = np.bincount(task.train.labels, minlength=len(KNOWN))
    kept = np.bincount(task.held_out.labels, minlength=len(KNOWN))
    counts = np.array([PER_CLASS[label] for label in KNOWN])
    assert counts.tolist()[-1] == 5
    assert (learned + kept).tolist() == counts.tolist()
    assert kept.sum() == counts.sum() // 3, "so small a set gives more than the share of the recipe"
    assert (learned >= 0.6 * counts).all()


@pytest.mark.parametrize("kind", ["streamed", "kept"])
def test_streamed_and_resident_end_with_the_same_model(runs, kind):
    (streamed, metrics), (resident, expected) = runs[kind], runs["resident"]
    assert metrics == expected
    first, second = (PrototypeSet.load(out / "prototypes") for out in (streamed, resident))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.log_r, second.log_r)
    for name in ("classifiers/0/weights", "classifiers/1/weights", "optimization/weights"):
        a, b = (load_tensors(out / name)[0] for out in (streamed, resident))
        assert all(torch.equal(a[key], b[key]) for key in a | b)
    assert (streamed / "quarantine.json").read_bytes() == (resident / "quarantine.json").read_bytes()


def test_small_classes_have_what_prototypes_they_can(runs, config):
    out, metrics = runs["streamed"]
    model = load_model(out / "model", CPU)
    learned = np.bincount(open_task(config.data, None).train.labels)
    assert [len(prototypes) for prototypes in model.gallery] == np.minimum(learned, 6).tolist()
    assert learned.min() < 6
    assert model.calibration is not None
    assert metrics["about"]["unknown_classes"] == len(UNKNOWN)
    assert set(metrics["scores"]) >= {"probability", "distance", "neighbors"}
    quarantine = json.loads((out / "quarantine.json").read_text())
    bad = quarantine["train"]["unreadable"] + quarantine["held out"]["unreadable"]
    assert [entry["name"].endswith("_7.JPEG") for entry in bad] == [True]
