"""What a run costs, counted by hand, and as often as images really go through a network."""

from dataclasses import replace

import pytest

from pmal import pipeline
from pmal._runtime.progress import Silent
from pmal._runtime.session import open_session
from pmal.benchmark.cells.cell import FLUCTUATION
from pmal.benchmark.cells.passes import cell_passes, epochs_at_cost
from pmal.config import Resources, RunConfig, build
from pmal.encoders import create_encoder
from pmal.methods import METHODS
from pmal.reporting.image_passes import image_passes
from tests.benchmark.ledgers import tiny


def passes(num_classes=6, **sections):
    return image_passes(build(RunConfig, sections), num_classes)


@pytest.mark.parametrize("method", METHODS)
def test_every_training_of_a_method_counts(method):
    words = {"method": method, "training": {"epochs": 10}}
    if METHODS[method].mines:
        assert passes(**words) == 10 + 10 + 10 * (1 + 60 / 128)
    else:
        each = {"arpl+cs": 2, "conosr": 4, "sphor": 4}.get(method, 1)
        again = {"proser": 1.5}[method] if METHODS[method].second else 0
        assert passes(**words) == 10 * each + 10 * again
        assert passes(**words, ensemble={"size": 3}) == 30 * each + 10 * again
        short = passes(**words, optimization={"epochs": 4, "learning_rate": 0.01})
        assert short == 10 * each + 4 * again


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"ensemble": {"size": 4}}, 400 + 100 * (1 + 60 / 128)),
        ({"optimization": {"epochs": 300}}, 200 + 300 * (1 + 60 / 128)),
        ({"optimization": {"refresh": 32}}, 200 + 100 * (1 + 32 / 128)),
        ({"optimization": {"refresh": 600}}, 200 + 100 * (1 + 60 / 128)),  # there are no more than 60
        ({"mining": {"per_class": 5}}, 200 + 100 * (1 + 30 / 128)),
        ({"training": {"batch_size": 64}}, 200 + 100 * (1 + 60 / 64)),
        ({"num_classes": 20}, 200 + 100 * (1 + 200 / 128)),
        ({"num_classes": 100}, 200 + 100 * (1 + 128 / 128)),  # a bank: one batch at a time
        ({"optimization": {"weight": 2.0}}, 200 + 100 * (1 + 60 / 128)),
    ],
)
def test_what_decides_the_cost_of_pmal(words, expected):
    assert passes(**words) == pytest.approx(expected)


def test_classifiers_alone_have_no_second_training():
    cell = tiny("pmal", epochs=10, settings=["ensemble.size=6"])
    assert cell_passes(replace(cell, measure=FLUCTUATION), 6) == 60
    assert cell_passes(cell, 6) == 60 + 10 * (1 + 18 / 32)
    assert cell_passes(tiny("softmax", epochs=10).together(3), 6) == 30


def test_epochs_of_several_networks_cost_as_much_as_those_of_one():
    for cost in (1.0, 36.5, 346.9, 2400.0):
        for networks in range(1, 6):
            assert abs(networks * epochs_at_cost(cost, networks) - cost) <= max(networks / 2, networks - cost)
    assert epochs_at_cost(2, networks=9) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pmal", "arpl+cs", "conosr"])
def test_the_count_is_that_of_a_training(method, tmp_path, monkeypatch):
    """All images that a network sees in training, prototypes, generated images and mixtures among them."""
    seen, network = [], type(create_encoder("small"))
    forward = network.forward

    def counted(self, images):
        if self.training:
            seen.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(network, "forward", counted)
    config = tiny(method, epochs=2, settings=["optimization.epochs=3", "optimization.refresh=8"]).config()
    session = open_session(Resources(device="cpu"), Silent())
    stages = ("classifiers", "embeddings", "mining", "optimization")
    for stage in stages if METHODS[method].mines else stages[:1]:
        pipeline.fit(config, tmp_path / "run", session, only=stage)
    # The training leaves out what does not fill a batch; a rehearsal has two images, in one view or two.
    steps = 200 // 32
    assert sum(n for n in seen if n > 4) / (32 * steps) == image_passes(config, 6)
