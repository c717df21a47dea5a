"""Softmaxes that cost as much as PMAL: which epochs they get, and what becomes of PMAL's settings."""

import numpy as np
import pytest

from pmal.benchmark.cells.cell import ENSEMBLE, make_cell
from pmal.benchmark.cells.equal_cost import count_known_classes
from pmal.benchmark.cells.passes import cell_passes
from pmal.benchmark.grid import Request, plan
from pmal.config import DataConfig
from pmal.errors import PmalError, UsageError

ALL = "pmal,softmax-long,softmax-ensemble"


def cells(data_root=None, **words):
    return [one.cell for one in plan(Request(**words), data_root)]


def test_a_softmax_as_long_as_all_trainings_of_pmal_together():
    long, pmal = cells(methods="softmax-long,pmal", data="cifar10", epochs=30)
    assert (long.method, long.epochs, pmal.epochs) == ("softmax", 104, 30)  # 60 + 30 * (1 + 60 / 128)
    assert long == cells(methods="softmax", data="cifar10", epochs=104)[0]


@pytest.mark.parametrize(
    ("words", "long", "ensemble", "networks"),
    [
        ({"data": "cifar10"}, 347, 116, 3),
        ({"data": "tinyimagenet"}, 456, 152, 3),  # 200 prototypes of 20 classes
        ({"data": "cifar+10"}, 331, 110, 3),
        ({"data": "imagenet-100", "epochs": 10}, 40, 13, 3),
        ({"data": "cifar10", "settings": ["optimization.epochs=300"]}, 641, 214, 3),
        ({"data": "cifar10", "settings": ["ensemble.size=4"]}, 547, 109, 5),
        ({"data": "cifar10", "settings": ["mining.per_class=1", "optimization.refresh=2"]}, 302, 101, 3),
        ({"data": "cifar10", "settings": ["training.batch_size=64"]}, 394, 131, 3),
        ({"data": "sample"}, 47, 16, 3),  # 12 epochs and batches of 64
    ],
)
def test_settings_of_pmal_decide_the_cost_and_do_not_make_another_softmax(words, long, ensemble, networks):
    pmal, one, several = cells(methods=ALL, **words)
    kept = [s for s in words.get("settings", ()) if s.startswith("training.")]
    assert (one.epochs, one.measure, list(one.settings)) == (long, "fit", kept)
    assert (several.method, several.epochs, several.measure) == ("softmax", ensemble, ENSEMBLE)
    assert sorted([*kept, f"ensemble.size={networks}"]) == list(several.settings)
    assert (several.networks, several.config().classifiers, one.config().classifiers) == (
        networks,
        networks,
        1,
    )
    known = count_known_classes(pmal.config().data, None)
    assert abs(cell_passes(one, known) - cell_passes(pmal, known)) <= 0.5
    assert abs(cell_passes(several, known) - cell_passes(pmal, known)) <= networks / 2


def test_every_split_and_seed_has_its_own():
    found = cells(methods="softmax-long,softmax-ensemble", data="cifar10", splits="0,2", seeds="0,1")
    assert len({cell.name for cell in found}) == 8
    assert {(cell.split, cell.seed) for cell in found} == {(0, 0), (0, 1), (2, 0), (2, 1)}


def test_the_command_of_an_ensemble_makes_it_again():
    words = {"data": "cifar10", "epochs": 30, "settings": ("mining.per_class=5", "data.limit=100")}
    [one] = plan(Request(methods="softmax-ensemble", **words))
    assert one.cell.name == "ensemble/cifar10-arpl0-oscri-strong32-limit100-size3-seed0"
    assert one.command == (
        "pmal benchmark --methods softmax-ensemble --data cifar10 --family arpl --splits 0 --seeds 0 "
        "--encoder oscri --recipe strong --epochs 30 --set data.limit=100 --set mining.per_class=5"
    )
    [long] = plan(Request(methods="softmax-long", **words))
    assert "--methods softmax " in long.command
    assert "--epochs 97 --set data.limit=100" in long.command


@pytest.fixture
def letters(tmp_path):
    """Data of one's own: five classes, which no published split says."""
    path = tmp_path / "letters.npz"
    train, test = (np.zeros((count, 8, 8), np.uint8) for count in (40, 5))
    np.savez(path, x_train=train, y_train=np.arange(40) % 5, x_test=test, y_test=np.arange(5))
    return str(path)


@pytest.mark.parametrize(
    ("settings", "known"), [([], 5), (["data.num_known=3"], 3), (['data.known=["0", "4"]'], 2)]
)
def test_classes_of_other_data_are_counted_in_the_data(letters, settings, known):
    long, pmal = cells(methods="softmax-long,pmal", data=letters, epochs=100, settings=settings)
    assert long.epochs == round(300 + 100 * known * 10 / 128)
    assert count_known_classes(pmal.config().data, None) == known


def test_published_splits_need_no_data(tmp_path):
    data = DataConfig("tinyimagenet", family="neal", split=1)
    assert count_known_classes(data, str(tmp_path)) == 20
    with pytest.raises(PmalError, match="cifar10"):
        cells(str(tmp_path), methods="softmax-long", data="cifar10", settings=["data.num_known=4"])


def test_the_data_are_looked_for_where_the_user_says(tmp_path, monkeypatch):
    asked = []

    def count(config, data_root):
        asked.append((config.split, data_root))
        return 4

    monkeypatch.setattr("pmal.benchmark.grid.count_known_classes", count)
    cells("/data", methods="softmax-long,softmax-ensemble", data="cifar10", splits="0,2", seeds="0,1")
    assert asked == [(0, "/data"), (2, "/data")]  # once for each split


def test_a_pmal_that_cannot_be_has_no_cost():
    with pytest.raises(UsageError, match=r"set ensemble\.size to 2 or more"):
        cells(methods="softmax-long", settings=["ensemble.size=1"])


def test_an_ensemble_is_no_softmax():
    softmax = make_cell("softmax", "cifar10", "arpl", 0, 0, recipe="strong")
    together = softmax.together(3)
    assert together != softmax
    assert (softmax.networks, together.networks) == (1, 3)
    assert together.name == "ensemble/cifar10-arpl0-oscri-strong100-size3-seed0"
    assert together.together(4).settings == ("ensemble.size=4",)
