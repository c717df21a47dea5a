"""How much prototypes change, where the answer is known."""

import numpy as np
import pytest
import torch

from pmal.benchmark.cells.fluctuation import compare_minings
from pmal.mining.prototypes import PrototypeSet

IDS = torch.tensor([10, 11, 12, 13, 20, 21, 22, 23])
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
# Two images of a class look alike, the other two as well, and the pairs are at right angles.
Z = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]] * 2)


def mined(*ids):
    count, zeros = len(ids), torch.zeros(len(ids)).double()
    labels = torch.tensor([0] * (count // 2) + [1] * (count // 2))
    rank = torch.arange(count // 2).repeat(2)
    return PrototypeSet(torch.tensor(ids), labels, zeros, zeros, rank, num_classes=2)


def test_the_same_prototypes():
    found = compare_minings([mined(10, 12, 20, 22)] * 3, Z, IDS, LABELS)
    assert (found["share_equal"], found["minings"], found["per_class"]) == (1.0, 3, 2)
    assert found["distance_to_nearest"] == 0.0


def test_others_that_look_alike():
    found = compare_minings([mined(10, 12, 20, 22), mined(11, 13, 21, 23)], Z, IDS, LABELS)
    assert (found["share_equal"], found["distance_to_nearest"]) == (0.0, pytest.approx(0.0))


def test_others_that_do_not():
    found = compare_minings([mined(10, 11, 20, 21), mined(12, 13, 22, 23)], Z, IDS, LABELS)
    assert (found["share_equal"], found["distance_to_nearest"]) == (0.0, pytest.approx(1.0))
    assert 0 <= found["distance_by_chance"] < 1


def test_both_ways_count():
    """Every one of the first has one alike among the second, but not the other way round."""
    found = compare_minings([mined(10, 11, 20, 21), mined(10, 12, 20, 22)], Z, IDS, LABELS)
    assert found["distance_to_nearest"] == pytest.approx((0 + 1 / 2) / 2)


def test_chance_draws_from_all_images_of_a_class():
    """The first image of each class is at right angles to the 39 others."""
    z = torch.tensor([[0.0, 1.0], *[[1.0, 0.0]] * 39] * 2)
    found = compare_minings([mined(1, 41)] * 3, z, torch.arange(80), np.arange(80) // 40)
    assert found["distance_by_chance"] < 0.3


def test_half_of_them():
    found = compare_minings([mined(10, 12, 20, 22), mined(10, 13, 20, 23)], Z, IDS, LABELS)
    assert found["share_equal"] == 0.5
