import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import UsageError
from pmal.optimization.losses import prototype_margin_loss
from tests.reference import optimization as reference


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.3]))
def test_is_the_transcription(seed, B, K, margin):
    distances, labels = _problem(seed, B, K)
    expected = reference.margin_loss(distances.tolist(), labels.tolist(), margin)
    assert prototype_margin_loss(distances, labels, margin=margin).item() == pytest.approx(
        expected, abs=1e-12
    )


def test_zero_without_gradient_once_the_margin_is_kept():
    distances = torch.tensor([[0.1, 0.7, 1.5], [1.0, 0.3, 0.9]], requires_grad=True)
    loss = prototype_margin_loss(distances, torch.tensor([0, 1]), margin=0.5)
    assert loss.item() == 0
    loss.backward()
    assert (distances.grad == 0).all()


def test_pulls_to_the_own_class_and_pushes_from_the_nearest_other_alone():
    distances = torch.tensor([[0.5, 0.7, 0.6], [0.2, 1.0, 1.1]], requires_grad=True)
    prototype_margin_loss(distances, torch.tensor([0, 0]), margin=0.5).backward()
    assert distances.grad.tolist() == [[0.5, 0, -0.5], [0, 0, 0]]


def test_gradients():
    distances = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distances.requires_grad_()
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradcheck(lambda d: prototype_margin_loss(d, labels, margin=0.8), (distances,))


def test_a_bad_distance_shows():
    distances = torch.tensor([[0.5, 0.7, torch.nan]])
    assert prototype_margin_loss(distances, torch.tensor([0])).isnan()


def test_distances_may_be_of_any_size():
    distances = torch.tensor([[5.0, 9.0, 7.0], [50.0, 20.0, 30.0]])
    assert prototype_margin_loss(distances, torch.tensor([0, 0])).item() == pytest.approx((0 + 30.5) / 2)


def test_one_class_is_refused():
    with pytest.raises(UsageError, match=r"\(3, 1\): pass \(B, K\) of 2 or more classes"):
        prototype_margin_loss(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.integers(2, 5),
    st.sampled_from([0.0, 0.5, 1.3]),
    st.sampled_from([1e-4, 0.01, 0.1, 1.0, 30.0]),
)
def test_the_smooth_loss_is_the_transcription(seed, B, K, margin, temperature):
    distances, labels = _problem(seed, B, K)
    expected = reference.smooth_margin_loss(distances.tolist(), labels.tolist(), margin, temperature)
    loss = prototype_margin_loss(distances, labels, margin=margin, temperature=temperature)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]))
def test_the_hinge_is_the_limit_from_above(seed, margin):
    """t log(1 + (K - 1) terms of at most one) is what the smooth loss is larger by, at the most."""
    distances, labels = _problem(seed, B=5, K=4)
    hinge = prototype_margin_loss(distances, labels, margin=margin)
    for temperature in (0.3, 0.01, 1e-4):
        smooth = prototype_margin_loss(distances, labels, margin=margin, temperature=temperature)
        assert hinge - 1e-12 <= smooth <= hinge + temperature * math.log(4) + 1e-12


def test_nothing_overflows_at_the_smallest_temperature():
    distances = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 2.0]], requires_grad=True)
    loss = prototype_margin_loss(distances, torch.tensor([0, 0]), margin=0.5, temperature=1e-4)
    loss.backward()
    assert loss.item() == pytest.approx((2.5 + 0) / 2)
    assert distances.grad.tolist() == [[0.5, -0.5, 0], [0, 0, 0]]


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_gradients_of_the_smooth_loss_by_finite_differences(temperature):
    distances, labels = _problem(seed=3, B=6, K=4)
    distances += torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).double()
    step, gradient = 1e-6, torch.zeros(6, 4).double()
    for i, k in itertools.product(range(6), range(4)):
        sides = []
        for sign in (1, -1):
            moved = distances.clone()
            moved[i, k] += sign * step
            sides.append(reference.smooth_margin_loss(moved.tolist(), labels.tolist(), 0.5, temperature))
        gradient[i, k] = (sides[0] - sides[1]) / (2 * step)
    distances.requires_grad_()
    prototype_margin_loss(distances, labels, margin=0.5, temperature=temperature).backward()
    torch.testing.assert_close(distances.grad, gradient, rtol=1e-5, atol=1e-8)


def test_a_temperature_pulls_on_after_the_margin_is_kept_and_pushes_from_every_class():
    distances = torch.tensor([[0.1, 0.7, 0.9]], requires_grad=True)
    prototype_margin_loss(distances, torch.tensor([0]), margin=0.5, temperature=0.1).backward()
    own, near, far = distances.grad[0].tolist()
    assert own > 0 > far > near


@pytest.mark.parametrize("temperature", [-0.1, math.nan])
def test_a_negative_temperature_is_refused(temperature):
    with pytest.raises(UsageError, match=f"temperature is {temperature}: pass 0 for the hinge"):
        prototype_margin_loss(torch.zeros(1, 2), torch.tensor([0]), temperature=temperature)


def _problem(seed, B, K):
    generator = torch.Generator().manual_seed(seed)
    # Tenths: classes at the same distance occur.
    distances = torch.randint(0, 21, (B, K), generator=generator).double() / 10
    return distances, torch.randint(0, K, (B,), generator=generator)
