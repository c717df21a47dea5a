import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.ensemble.heads import HeadConfig, HeadShape, create_head
from tests.baselines import toy
from tests.reference import points as reference


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 4), st.integers(1, 3), st.integers(1, 4))
def test_is_the_transcription(seed, B, K, n, D):
    torch.manual_seed(seed)
    z, labels = torch.randn(B, D, dtype=torch.float64), torch.randint(0, K, (B,))
    for name, equations in (("rpl", reference.rpl), ("rpl++", reference.rpl_plus)):
        head = toy.head_of(name, K, D, points=n, gamma=0.7, weight=0.3)
        learned = [head.points.tolist(), head.radius.tolist()]
        learned += [head.prototypes.tolist()] if name == "rpl++" else []
        logits, loss = equations(z.tolist(), *learned, labels.tolist(), 0.7, 0.3)
        expected = torch.tensor(logits, dtype=torch.float64)
        torch.testing.assert_close(
            head(z),
            expected,
        )
        assert head.loss(toy.Plain, z, labels, 0.0, None).item() == pytest.approx(loss, rel=1e-9)


def test_cross_entropy_drives_samples_from_the_reciprocal_point_of_their_class():
    head = toy.head_of("rpl", K=2, D=1, weight=0.0)
    with torch.no_grad():
        head.points.copy_(torch.tensor([[[1.0]], [[-1.0]]]))
    z = torch.zeros(1, 1, requires_grad=True)
    head.loss(toy.Plain, z, torch.tensor([0]), 0.0, None).backward()
    assert z.grad > 0  # goes left, away from 1
    assert head.points.grad[0] < 0  # which gives way to the right
    assert head.points.grad[1] < 0  # the other one comes nearer: it is not of that class
    assert (head.radius.grad == 0).all()


def test_the_bound_draws_samples_to_the_shell_and_the_shell_to_them():
    head = toy.head_of("rpl", K=2, D=1, gamma=0.0, weight=1.0)
    with torch.no_grad():
        head.points.zero_()
        head.radius.copy_(torch.tensor([4.0, 4.0]))
    z = torch.tensor([[1.0], [3.0], [2.0]], requires_grad=True)
    head.loss(toy.Plain, z, torch.tensor([0, 1, 1]), 0.0, None).backward()
    assert z.grad[0] < 0 < z.grad[1]
    assert z.grad[2] == 0
    assert head.radius.grad[0] > 0 > head.radius.grad[1]


def test_prototypes_pull():
    head = toy.head_of("rpl++", K=2, D=1)
    with torch.no_grad():
        head.points.zero_()
        head.radius.zero_()
        head.prototypes.copy_(torch.tensor([[[1.0]], [[-1.0]]]))
    z = torch.zeros(2, 1, requires_grad=True)
    head.loss(toy.Plain, z, torch.tensor([0, 1]), 0.0, None).backward()
    assert z.grad[0] < 0 < z.grad[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rpl", "rpl++"])
def test_rejects_what_is_between_the_classes(name):
    accuracy, auroc = toy.measure(toy.learn(name), [0.0, 0.0])
    assert accuracy > 0.99
    assert auroc > 0.95


def test_the_second_variant_has_twice_the_points():
    shape = HeadShape(128, 10, 3, 32)
    extra = [
        sum(p.numel() for p in create_head(HeadConfig(name), shape).parameters()) for name in ("rpl", "rpl++")
    ]
    assert extra == [10 * 128 + 10, 2 * 10 * 128 + 10]
