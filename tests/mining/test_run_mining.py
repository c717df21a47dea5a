"""Mining as a stage of a run."""

import dataclasses

import numpy as np
import pytest
import torch

from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import MiningConfig, Resources, RunConfig
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.errors import DataError
from pmal.geometry.robustness import topology_robustness
from pmal.mining import run_mining
from pmal.mining.miner import mine_prototypes
from pmal.mining.run_mining import quality_of_images
from pmal.mining.sample_quality import SampleQuality
from tests.reporting.embedded import embedded_samples
from tests.support.jobs import make_job


@pytest.fixture
def embedded():
    """Samples, and what two classifiers make of them."""
    random = np.random.default_rng(0)
    labels = np.arange(30) % 3
    samples = Samples.whole(ArrayStore("birds", np.zeros((30, 8, 8, 1), np.uint8)), labels, ("a", "b", "c"))
    spaces = []
    for _ in range(2):
        weight = random.normal(size=(3, 5))
        z = random.normal(size=(30, 5)) + 2 * weight[labels]
        spaces.append(EmbeddedSet(*(torch.from_numpy(part) for part in (z, weight, weight[:, 0])), False))
    return samples, spaces


def _mine_run(samples, spaces, config, folder):
    from pmal.mining.run_mining import choose_prototypes, measure_robustness

    logged = []
    session = open_session(Resources(device="cpu"), Lines())
    session = session.logging_to(lambda **event: logged.append(event))
    job = make_job(config, samples=samples, folder=folder, session=session)
    return choose_prototypes(spaces, measure_robustness(spaces, job), job), logged


@pytest.mark.parametrize(
    ("options", "public"),
    [
        ({}, {}),
        ({"temperature": 0.5, "per_class": 2}, {}),
        ({"landmarks": 10, "topology": "rms", "precision": "fast"}, {}),
        ({"temperature": 0.0, "landmarks": 0}, {"temperature": "median", "landmarks": None}),
        ({"quality": "mc-dropout", "diversity": "random", "per_class": 3, "epsilon": 0.5}, {}),
    ],
)
def test_a_run_mines_by_its_settings(tmp_path, capsys, embedded, options, public):
    samples, spaces = embedded
    config = RunConfig(seed=6, mining=MiningConfig(**options))
    mined, logged = _mine_run(samples, spaces, config, tmp_path)
    expected = mine_prototypes(
        [space.space for space in spaces],
        samples.labels,
        class_names=samples.class_names,
        files=[f"birds[{i}]" for i in range(30)],
        seed=6,
        **(options | public),
    )
    assert (mined, logged) == (expected, [])
    pairs = 30 * (config.mining.landmarks or 30)
    said = capsys.readouterr().err
    assert (
        said.startswith(f"robustness: {pairs} pairs in ") if config.mining.quality == "topology" else not said
    )


def test_classifiers_that_do_not_differ_are_a_plain_note(tmp_path, capsys, embedded):
    samples, spaces = embedded
    _, logged = _mine_run(samples, [spaces[0]] * 2, RunConfig(), tmp_path)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("warning: two spaces have the same topology")
    assert logged == [{"stage": "mining", "warning": last.removeprefix("warning: ")}]


def test_the_quality_of_every_image_stays_beside_the_prototypes(tmp_path, embedded):
    samples, spaces = embedded
    mixed = np.random.default_rng(1).permutation(30)
    shuffled = [dataclasses.replace(space, z_ND=space.z_ND[mixed]) for space in spaces]
    mined, _ = _mine_run(samples.at(mixed), shuffled, RunConfig(), tmp_path)
    found = SampleQuality.load(tmp_path / "quality")
    assert (found.rule, found.notes) == ("topology", ())
    assert torch.equal(
        found.of(mined.ids.new_tensor(range(30))), topology_robustness([s.space[:2] for s in spaces])
    )
    assert torch.equal(found.log_r[mined.ids], mined.log_r)
    (tmp_path / "quality.safetensors").write_bytes((tmp_path / "prototypes.safetensors").read_bytes())
    with pytest.raises(DataError, match=r"quality\.safetensors: damaged"):
        SampleQuality.load(tmp_path / "quality")


def test_what_mining_warned_of_stays_with_the_quality(tmp_path, embedded):
    samples, spaces = embedded
    _mine_run(samples, [spaces[0]] * 2, RunConfig(), tmp_path)
    [note] = SampleQuality.load(tmp_path / "quality").notes
    assert note.startswith("two spaces have the same topology")


# -- which r the report and the audit go by --


@pytest.fixture
def session():
    return open_session(Resources(device="cpu"))


def test_what_mining_left_counts_for_the_same_samples_rule_and_embeddings_alone(
    tmp_path, monkeypatch, session
):
    samples, embedded = embedded_samples()
    measured = quality_of_images(embedded, samples, tmp_path, RunConfig(), session)
    assert not list(tmp_path.iterdir())
    measured.save(tmp_path / "quality")
    again = []
    monkeypatch.setattr(run_mining, "rate_images", lambda *words: again.append(words))
    found = quality_of_images(embedded, samples, tmp_path, RunConfig(), session)
    assert torch.equal(found.of(samples.ids), measured.log_r)
    assert not again
    others = dataclasses.replace(samples, ids=samples.ids + 1)
    fresh = [dataclasses.replace(one, fresh=True) for one in embedded]
    quality_of_images(embedded, others, tmp_path, RunConfig(), session)
    quality_of_images(fresh, samples, tmp_path, RunConfig(), session)
    probability = RunConfig(mining=MiningConfig(quality="probability"))
    quality_of_images(embedded, samples, tmp_path, probability, session)
    assert len(again) == 3


def test_every_sample_keeps_its_r_whatever_the_order_of_the_ids(tmp_path, session):
    samples, embedded = embedded_samples()
    plain = quality_of_images(embedded, samples, tmp_path, RunConfig(), session)
    order = np.random.default_rng(0).permutation(len(samples))
    moved = [dataclasses.replace(one, z_ND=one.z_ND[order]) for one in embedded]
    found = quality_of_images(moved, samples.at(order), tmp_path, RunConfig(), session)
    assert torch.equal(found.ids, plain.ids)
    torch.testing.assert_close(found.log_r, plain.log_r)
