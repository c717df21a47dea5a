import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.data.batches import ResidentImages, epoch_plan, sequential_plan


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 5))
def test_an_epoch_has_full_batches_of_different_samples(count, batch_size, seed):
    plan = epoch_plan(count, batch_size, seed)
    positions = torch.cat(plan)
    assert {len(batch) for batch in plan} == {min(batch_size, count)}
    assert len(positions.unique()) == len(positions) > count - min(batch_size, count)
    assert all(torch.equal(a, b) for a, b in zip(plan, epoch_plan(count, batch_size, seed), strict=True))


def test_orders_differ_by_seed():
    assert not torch.equal(torch.cat(epoch_plan(100, 10, 0)), torch.cat(epoch_plan(100, 10, 1)))


@given(st.integers(1, 100), st.integers(1, 40))
def test_sequential_covers_everything_in_order(count, batch_size):
    assert torch.equal(torch.cat(sequential_plan(count, batch_size)), torch.arange(count))


def test_resident_images_come_by_position():
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 8, 8).contiguous()
    batches = list(
        ResidentImages(images, torch.device("cpu")).stream([torch.tensor([3, 1]), torch.tensor([9])])
    )
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[3, 1], [9]]
