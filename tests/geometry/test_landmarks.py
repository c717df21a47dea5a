import numpy as np
import pytest
import torch

from pmal.errors import UsageError
from pmal.geometry import topology_distance, topology_robustness
from pmal.geometry.landmarks import draw_landmarks
from pmal.geometry.topology import TOPOLOGIES


def spaces(n=900, seed=0):
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(5, 7))
    z = 2 * W[rng.integers(0, 5, n)] + rng.normal(size=(n, 7))
    return (z, W), (z + 0.5 * rng.uniform(size=(n, 1)) * rng.normal(size=(n, 7)), 1.1 * W)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_standard_error_is_the_error(topology):
    first, second = spaces()
    exact = topology_distance(first, second, topology=topology).x
    scores = []
    for seed in range(40):
        found = topology_distance(first, second, topology=topology, landmarks=200, seed=seed)
        scores.append((found.x - exact) / found.standard_error)
    scores = torch.stack(scores)
    assert 0.85 < float(scores.square().mean().sqrt()) < 1.15
    assert abs(float(scores.mean())) < 0.25
    assert float((scores.abs() < 3).double().mean()) > 0.98


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_more_landmarks_leave_less_error(topology):
    first, second = spaces(n=2000)
    exact = topology_distance(first, second, topology=topology).x
    error, expected = [], []
    for count in (25, 400):  # 16 times as many, and a fifth of all samples: 4 / sqrt(1 - 0.2) = 4.5
        drawn = [
            topology_distance(first, second, topology=topology, landmarks=count, seed=s) for s in range(25)
        ]
        error.append(torch.stack([found.x - exact for found in drawn]).square().mean().sqrt())
        expected.append(torch.stack([found.standard_error for found in drawn]).square().mean().sqrt())
    assert 3.5 < float(expected[0] / expected[1]) < 5.5
    assert 3 < float(error[0] / error[1]) < 6.5


def test_as_many_landmarks_as_samples_is_exact():
    first, second = spaces(n=60)
    exact, marked = topology_distance(first, second), topology_distance(first, second, landmarks=60)
    assert torch.equal(exact.x, marked.x)
    assert not marked.standard_error.any()


def test_the_seed_decides():
    pair = spaces(n=200)
    one, same, other = (topology_robustness(pair, landmarks=50, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_landmarks_are_drawn_without_replacement():
    assert draw_landmarks(10, 10, 3).tolist() == list(range(10))
    drawn = torch.cat([draw_landmarks(10, 2, seed) for seed in range(500)])
    assert int(drawn.bincount(minlength=10).min()) > 60


def test_no_nan_where_landmarks_see_nothing():
    z = np.zeros((50, 2))
    z[0] = 1.0  # one sample apart: most draws see 20 identical ones
    for seed in range(5):
        with pytest.warns(UserWarning, match="same topology"):
            log_r = topology_robustness([(z, np.eye(2)), (2 * z, np.eye(2))], landmarks=20, seed=seed)
        assert torch.equal(log_r, torch.zeros(50, dtype=torch.float64))


def test_progress_adds_up():
    done = []
    topology_robustness([*spaces(n=100), *spaces(n=100, seed=1)[:1]], landmarks=30, report=done.append)
    assert sum(done) == 3 * 100 * 30


@pytest.mark.parametrize("count", [1, 0, -4, 2.5])
def test_a_count_that_makes_no_sense(count):
    with pytest.raises(UsageError, match=f"landmarks={count}"):
        topology_robustness(spaces(n=10), landmarks=count)


def test_the_same_topology_is_said_with_landmarks_too():
    rng = np.random.default_rng(0)
    z, W = rng.normal(size=(400, 6)), rng.normal(size=(5, 6))
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    with pytest.warns(UserWarning, match="same topology"):
        log_r = topology_robustness([(z, W), (z @ rotation, W @ rotation)], landmarks=50)
    assert not log_r.any()
