"""Mining as a stage of a run."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pmal._runtime.progress import Lines
from pmal._runtime.session import open_session
from pmal.config import MiningConfig, Resources, RunConfig
from pmal.data.samples import ArrayStore, Samples
from pmal.ensemble.embeddings import EmbeddedSet
from pmal.mining import mine_prototypes


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


def _mine_run(samples, spaces, config, path):
    from pmal.pipeline import mine_run

    logged = []
    session = open_session(Resources(device="cpu"), Lines())
    session = session.logging_to(lambda **event: logged.append(event))
    return mine_run(spaces, SimpleNamespace(samples=samples), config, path, session), logged


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
    mined, logged = _mine_run(samples, spaces, config, tmp_path / "prototypes")
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
    assert said.startswith(f"mining: {pairs} pairs in ") if config.mining.quality == "topology" else not said


def test_classifiers_that_do_not_differ_are_a_plain_note(tmp_path, capsys, embedded):
    samples, spaces = embedded
    _, logged = _mine_run(samples, [spaces[0]] * 2, RunConfig(), tmp_path / "prototypes")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("warning: two spaces have the same topology")
    assert logged == [{"stage": "mining", "warning": last.removeprefix("warning: ")}]
