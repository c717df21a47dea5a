"""Several cells at a time: none waits for nothing, none trains what another one is training."""

from pmal.benchmark.grid import Planned
from pmal.benchmark.running import Places
from pmal.benchmark.schedule import _next_ready, _Running
from pmal.benchmark.shared import classifier_keys
from pmal.config import Resources
from tests.benchmark.ledgers import tiny

CPU = Resources(device="cpu")


def test_a_cell_waits_for_the_classifier_that_another_one_trains(tmp_path):
    places = Places(tmp_path / "out", tmp_path / "work")
    planned = [Planned(cell) for cell in (tiny("softmax"), tiny("pmal"), tiny("softmax", seed=1))]
    position, training = _next_ready([0, 1, 2], [], planned, places, CPU)
    assert (position, len(training)) == (0, 1)
    running = [_Running(None, 0, training)]
    assert _next_ready([1, 2], running, planned, places, CPU)[0] == 2
    assert _next_ready([1], running, planned, places, CPU) is None
    # The first cell goes on, but its classifier is there: the second need not wait for the rest of it.
    place = tmp_path / "work" / "classifiers" / training[0][0] / "0"
    place.mkdir(parents=True)
    (place / "weights.json").write_text("{}")
    position, still = _next_ready([1], running, planned, places, CPU)
    assert position == 1
    assert still == classifier_keys(tiny("pmal").config(), "cpu")[1:]
