import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import UsageError
from pmal.optimization import prototype_margin_loss
from tests.reference import optimization as reference


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.3]))
def test_is_the_transcription(seed, B, K, margin):
    generator = torch.Generator().manual_seed(seed)
    # Tenths: classes at the same distance occur.
    distances = torch.randint(0, 21, (B, K), generator=generator).double() / 10
    labels = torch.randint(0, K, (B,), generator=generator)
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
