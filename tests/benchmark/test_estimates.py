"""How long a plan will take, by the speed of what is in the ledger."""

from dataclasses import replace

import pytest

from pmal.benchmark.cells.cell import FLUCTUATION
from pmal.benchmark.cells.shared import classifier_keys
from pmal.benchmark.estimates import describe, estimate_cells, total, usual_speed
from pmal.benchmark.grid import Planned
from tests.benchmark.ledgers import made_up, record, tiny

HERE = {"device": "cuda", "machine": "x86_64", "gpu": "some GPU"}


def measured(cell, speed, hardware=HERE, **words):
    about = {"images_per_s_median": speed, "manifest": {"hardware": hardware}}
    return record(cell, logit=0.5) | about | words


def estimates(cells, results, trained=(), images=1000):
    return estimate_cells(
        [Planned(cell) for cell in cells],
        results,
        HERE,
        device="cuda",
        trained=lambda key: key in trained,
        count_images=lambda cell: images,
    )


def test_what_is_shared_is_counted_once(tmp_path):
    results, _ = made_up(tmp_path, measured(tiny(seed=9), 500.0)).results()
    cells = [tiny("softmax", epochs=10), tiny("pmal", epochs=10), tiny("softmax", epochs=20)]
    found = estimates(cells, results)
    assert [one.trainings for one in found] == [1, 2, 1]
    assert [one.seconds for one in found] == pytest.approx([20.0, 40.0, 40.0])
    trained = classifier_keys(cells[1].config(), "cuda")
    assert [one.trainings for one in estimates(cells, results, trained)] == [0, 1, 1]


def test_a_second_training_takes_as_long_as_it_is(tmp_path):
    results, _ = made_up(tmp_path, measured(tiny(seed=9), 500.0)).results()
    [found] = estimates([tiny("pmal", epochs=10, settings=["optimization.epochs=30"])], results)
    assert (found.trainings, found.seconds) == (3, pytest.approx((10 + 10 + 30) * 1000 / 500.0))
    [found] = estimates([tiny("softmax", epochs=10).together(3)], results)
    assert (found.trainings, found.seconds) == (3, pytest.approx(30 * 1000 / 500.0))


def test_without_a_cell_of_this_encoder_and_hardware_there_is_no_estimate(tmp_path):
    elsewhere = measured(tiny(seed=8), 500.0, {**HERE, "gpu": "another GPU"})
    crowded = measured(tiny(seed=9), 500.0, beside=3)
    results, _ = made_up(tmp_path, elsewhere, crowded).results()
    [found] = estimates([tiny()], results)
    assert found.seconds is None
    assert describe(found) == "1 training, no estimate (no cell of small on this hardware yet)"
    assert total([found], 1) == "1 of 1 cells to compute; 1 without an estimate"


def test_what_needs_no_training_takes_no_time():
    found = estimates([tiny("softmax"), tiny("openmax")], [])
    assert [one.seconds for one in found] == [None, 0.0]


def test_minings_are_not_followed_by_a_second_training():
    [found] = estimates([replace(tiny("pmal", settings=["ensemble.size=6"]), measure=FLUCTUATION)], [])
    assert found.trainings == 6


def test_without_the_data_there_is_no_estimate(tmp_path):
    results, _ = made_up(tmp_path, measured(tiny(seed=9), 500.0)).results()
    [found] = estimates([tiny()], results, images=None)
    assert "data are not here" in describe(found)


def test_the_most_alike_cells_decide(tmp_path):
    results, _ = made_up(
        tmp_path, measured(tiny(seed=8), 500.0), measured(tiny("pmal", seed=9), 100.0)
    ).results()
    assert usual_speed(tiny("softmax"), results, HERE) == 500.0
    assert usual_speed(tiny("pmal"), results, HERE) == 100.0


def test_one_cell_on_a_busy_machine_does_not_decide(tmp_path):
    speeds = enumerate((490.0, 500.0, 20.0), 1)
    results, _ = made_up(tmp_path, *(measured(tiny(seed=seed), speed) for seed, speed in speeds)).results()
    assert usual_speed(tiny(), results, HERE) == 490.0


@pytest.mark.parametrize("other", [{"gpu": "another GPU"}, {"machine": "arm64"}, {"threads": 4}])
def test_other_hardware_tells_nothing(tmp_path, other):
    results, _ = made_up(tmp_path, measured(tiny(seed=9), 500.0, HERE | other)).results()
    assert usual_speed(tiny(), results, HERE) is None
    assert usual_speed(tiny(), results, HERE | other) == 500.0


def test_another_encoder_tells_nothing(tmp_path):
    results, _ = made_up(tmp_path, measured(replace(tiny(seed=9), encoder="oscri"), 500.0)).results()
    assert usual_speed(tiny(), results, HERE) is None


def test_cells_of_the_same_data_come_before_all_others(tmp_path):
    elsewhere = replace(tiny("softmax", seed=8), source="cifar10")
    results, _ = made_up(
        tmp_path, measured(elsewhere, 500.0), measured(tiny("pmal", seed=9), 100.0)
    ).results()
    assert usual_speed(tiny("softmax"), results, HERE) == 100.0
    assert usual_speed(replace(tiny("openmax"), source="mnist"), results, HERE) == 300.0
