import numpy as np
import pytest
import torch

from pmal.errors import UsageError
from pmal.geometry.landmarks import draw_landmarks
from pmal.geometry.logits import centered_logits
from pmal.geometry.robustness import topology_distance, topology_robustness
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


def weighted_square(d_a, d_b, weight, topology):
    """x^2 as a function of how often each landmark counts, of one sample's distances to the landmarks."""
    if topology != "unit":
        return (weight * (d_a - d_b).square()).sum() / weight.sum() * (900 if topology == "literal" else 1)
    a, b = (d / (weight * d.square()).sum().sqrt() for d in (d_a, d_b))
    return (weight * (a - b).square()).sum()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_standard_error_is_the_delta_method_by_what_each_landmark_weighs(topology):
    first, second = spaces()
    marks = draw_landmarks(900, 12, seed=3)
    found = topology_distance(first, second, topology=topology, landmarks=12, seed=3)
    y_a, y_b = (centered_logits(*space) for space in (first, second))
    for i in (0, 450, int(marks[0])):
        d_a, d_b = ((y[i] - y[marks]).norm(dim=1) for y in (y_a, y_b))
        weight = torch.ones(12, dtype=torch.float64, requires_grad=True)
        square = weighted_square(d_a, d_b, weight, topology)
        (slope,) = torch.autograd.grad(square, weight)
        variance = (1 - 12 / 900) * 12 / 11 * slope.square().sum()
        torch.testing.assert_close(found.x[i], square.detach().sqrt(), rtol=1e-9, atol=0)
        torch.testing.assert_close(
            found.standard_error[i], variance.sqrt() / (2 * found.x[i]), rtol=1e-9, atol=0
        )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_small_difference_is_seen(topology):
    (z, W), _ = spaces(n=300)
    moved = z + 1e-9 * np.random.default_rng(1).normal(size=z.shape)
    exact = topology_distance((z, W), (moved, W), topology=topology).x
    found = topology_distance((z, W), (moved, W), topology=topology, landmarks=200).x
    assert float(exact.min()) > 0
    torch.testing.assert_close(found, exact, rtol=0.5, atol=0)


@pytest.mark.slow
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
