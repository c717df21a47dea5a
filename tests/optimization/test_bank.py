import math

import pytest
import torch

from pmal._runtime.processes.ranks import RankGroup
from pmal.errors import DataError
from pmal.optimization.bank import PrototypeBank, as_table, held_prototypes, refresh_size

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False], [True, True, False]])
COUNT, FEATURES = 6, 4


def make_bank(refresh, mask=MASK):
    """The image of a prototype is one pixel with its number, so that it can be recognized."""
    count = int(mask.sum())
    images = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1)
    return PrototypeBank(images, mask, FEATURES, refresh)


def embed(images_RCHW, weight_D):
    """A stand-in for an encoder: the prototype's number + 1, in another direction for each."""
    number_R1 = images_RCHW.flatten(1).to(weight_D.dtype) + 1
    return torch.cos(number_R1 * torch.arange(1, FEATURES + 1)) * weight_D


def due_images(bank):
    return bank.images[bank.due()]


def step(bank, weight_D):
    due = bank.due()
    return bank.renew(due, embed(bank.images[due], weight_D))


def plain(weight_D, mask=MASK):
    count = int(mask.sum())
    return as_table(embed(torch.arange(count).view(count, 1, 1, 1), weight_D), mask)


def test_the_table_has_each_prototype_at_its_class_and_rank():
    table = as_table(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]), MASK)
    assert table[:, :, 0].tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0], [5, 6, 0]]


@pytest.mark.parametrize("mask", [MASK, torch.ones(3, 2, dtype=torch.bool)], ids=["gaps", "whole"])
def test_a_full_refresh_is_the_plain_computation(mask):
    bank, pull = make_bank(int(mask.sum()), mask), torch.randn(*mask.shape, FEATURES)
    for scale in (1.0, 3.0):  # the second step must not see anything of the first
        gradients = []
        for compute in (step, plain):
            weight = torch.full((FEATURES,), scale, requires_grad=True)
            table = compute(bank, weight) if compute is step else compute(weight, mask)
            (table * pull).sum().backward()
            gradients.append((table.detach(), weight.grad))
        torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("refresh", [1, 2, 4, 5, 6])
def test_every_prototype_is_renewed_within_one_rotation(refresh):
    bank, weight = make_bank(refresh), torch.ones(FEATURES)
    rotation = math.ceil(COUNT / refresh)
    for start in range(3):
        seen = set()
        for _ in range(rotation):
            seen |= set(due_images(bank).flatten().tolist())
            step(bank, weight * (start + 1))
        assert seen == set(range(COUNT))
        table = step(bank, weight * (start + 1))
        torch.testing.assert_close(table, plain(weight * (start + 1)))
        assert bank.age.max() < rotation


def test_the_gradient_goes_to_the_fresh_part_and_the_rest_is_as_it_was():
    bank = make_bank(2)
    for _ in range(3):
        step(bank, torch.ones(FEATURES))
    due = due_images(bank).flatten().tolist()
    z_RD = embed(due_images(bank), torch.full((FEATURES,), 7.0)).requires_grad_()
    table = bank.renew(bank.due(), z_RD)
    old, new = plain(torch.ones(FEATURES)), plain(torch.full((FEATURES,), 7.0))
    fresh = torch.zeros(COUNT, 1)
    fresh[due] = 1
    where = as_table(fresh, MASK)
    torch.testing.assert_close(table, torch.where(where.bool(), new, old))
    table.sum().backward()
    assert (z_RD.grad == 1).all()


def test_a_part_has_as_many_classes_as_it_can():
    mask = torch.ones(4, 3, dtype=torch.bool)
    bank = make_bank(4, mask)
    for _ in range(3):
        classes = [number // 3 for number in due_images(bank).flatten().tolist()]
        assert sorted(classes) == [0, 1, 2, 3]
        step(bank, torch.ones(FEATURES))


def test_age_and_drift_say_what_happened():
    bank = make_bank(2)
    for _ in range(3):
        step(bank, torch.ones(FEATURES))
    step(bank, torch.ones(FEATURES))
    assert bank.staleness() == {"prototype_age": 1.0, "prototype_drift": pytest.approx(2 / 3)}  # from zero
    for _ in range(2):
        step(bank, torch.ones(FEATURES))
    assert bank.staleness()["prototype_drift"] == pytest.approx(0, abs=1e-6)
    for _ in range(3):
        step(bank, -torch.ones(FEATURES))
    assert bank.staleness() == {"prototype_age": 1.0, "prototype_drift": pytest.approx(2)}


def test_a_full_refresh_has_no_age():
    bank = make_bank(COUNT)
    step(bank, torch.ones(FEATURES))
    step(bank, torch.ones(FEATURES))
    assert bank.staleness() == {"prototype_age": 0.0, "prototype_drift": pytest.approx(0, abs=1e-6)}


def test_the_state_goes_on_where_it_was_and_is_small():
    bank, other = make_bank(4), make_bank(4)
    for scale in (1.0, 2.0):
        step(bank, torch.full((FEATURES,), scale))
    other.load_state_dict(bank.state_dict())
    assert "images" not in bank.state_dict()
    for _ in range(2):
        weight = torch.randn(FEATURES)
        assert torch.equal(due_images(other), due_images(bank))
        assert torch.equal(step(other, weight), step(bank, weight))
        assert other.staleness() == bank.staleness()


def test_processes_take_turns_in_the_order_of_one_and_go_on_from_its_checkpoint():
    """Of two processes each has every second picture; what is due together is due next to one alone."""
    alone = make_bank(4)
    images = alone.images.clone()
    for _ in range(2):  # of 6 prototypes 4 and 4: two of the second rotation are done
        step(alone, torch.ones(FEATURES))
    assert alone.cursor == 2
    due = []
    for rank in range(2):
        ranks = RankGroup(rank, 2)
        own = torch.arange(COUNT, dtype=torch.uint8)[held_prototypes(MASK, ranks)].view(-1, 1, 1, 1)
        bank = PrototypeBank(own, MASK, FEATURES, 4, ranks)
        bank.load_state_dict(alone.state_dict())
        assert torch.equal(bank.images, images[rank::2])
        due.append(due_images(bank).flatten().tolist())
    assert [number for both in zip(*due, strict=True) for number in both] == (
        due_images(alone).flatten().tolist()
    )


def test_nothing_grows_and_nothing_moves():
    """A captured step reads and writes the same memory for ever."""
    bank = make_bank(4)
    before = {name: (b.shape, b.dtype, b.data_ptr()) for name, b in bank.named_buffers()}
    shapes = {due_images(bank).shape}
    for _ in range(5):
        step(bank, torch.ones(FEATURES))
        shapes.add(due_images(bank).shape)
    assert {name: (b.shape, b.dtype, b.data_ptr()) for name, b in bank.named_buffers()} == before
    assert shapes == {(4, 1, 1, 1)}


def test_the_part_is_what_was_asked_for_or_follows_from_the_batch():
    assert [refresh_size(100, 64, refresh) for refresh in (7, 100, 500)] == [7, 100, 100]
    assert [refresh_size(count, 50) for count in (99, 100, 101, 5000)] == [99, 100, 50, 50]


def test_images_that_do_not_fit_the_mask_are_refused():
    with pytest.raises(DataError, match="5 images for 6 entries"):
        PrototypeBank(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), MASK, FEATURES, 2)
    with pytest.raises(DataError, match="0 images"):
        PrototypeBank(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), MASK & False, FEATURES, 2)
