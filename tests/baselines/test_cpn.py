import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.baselines.cpn import random_points
from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from pmal.errors import UsageError
from tests.baselines import toy
from tests.reference import points as reference


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 4), st.integers(1, 3), st.integers(1, 4))
def test_is_the_transcription(seed, B, K, n, D):
    torch.manual_seed(seed)
    head = toy.head_of("cpn", K, D, points=n, gamma=0.7, weight=0.3)
    z, labels = torch.randn(B, D, dtype=torch.float64), torch.randint(0, K, (B,))
    logits, loss = reference.cpn(z.tolist(), head.points.tolist(), labels.tolist(), 0.7, 0.3)
    torch.testing.assert_close(head(z), torch.tensor(logits, dtype=torch.float64))
    assert head.loss(toy.Plain, z, labels, 0.0, None).item() == pytest.approx(loss, rel=1e-9)


def test_samples_are_drawn_to_the_nearest_prototype_of_their_class():
    head = toy.head_of("cpn", K=2, D=1, points=2)
    with torch.no_grad():
        head.points.copy_(torch.tensor([[[0.0], [4.0]], [[9.0], [-9.0]]]))
    z = torch.tensor([[1.0], [3.0]], requires_grad=True)
    head.loss(toy.Plain, z, torch.tensor([0, 0]), 0.0, None).backward()
    # Against the gradient: the first goes to 0, the second to 4.
    assert z.grad[0] > 0 > z.grad[1]
    assert (head.points.grad[0] != 0).all()


@pytest.mark.parametrize("place", [[0.0, 0.0], [9.0, 9.0]], ids=["between", "far beyond"])
def test_rejects_what_is_near_no_prototype(place):
    accuracy, auroc = toy.measure(toy.learn("cpn"), place)
    assert accuracy > 0.99
    assert auroc > 0.95


@pytest.mark.parametrize("name", ["cpn", "rpl", "rpl++"])
def test_a_class_without_points_is_refused(name):
    with pytest.raises(UsageError, match=r"method_options.points = 0: must be 1 or more"):
        create_head(HeadConfig(name, {"points": 0}), HeadShape(4, 2, 1, 28))


def test_mixed_precision_does_not_reach_the_distances():
    head = create_head(HeadConfig("cpn"), HeadShape(64, 3, 1, 28))
    z = 30 + torch.randn(5, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = head(z)
    assert torch.equal(mixed, head(z))


def test_points_start_near_the_origin():
    torch.manual_seed(0)
    points = random_points(HeadShape(128, 10, 3, 32), points=4)
    assert points.shape == (10, 4, 128)
    assert points.std().item() == pytest.approx(0.1, rel=0.05)
