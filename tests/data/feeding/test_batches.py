import errno
import multiprocessing
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.data.decoding.decode import encode_png
from pmal.data.decoding.decoded import DecodedImages, scratch_file
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import SampleDataset, load_images
from pmal.data.feeding.batches import (
    ChosenImages,
    HostImages,
    ResidentImages,
    StreamedImages,
    epoch_plan,
    is_resident,
    sequential_plan,
    steps_in_epoch,
)
from pmal.data.sources.folder import open_folder
from pmal.errors import DataError


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 5))
def test_an_epoch_has_full_batches_of_different_samples(count, batch_size, seed):
    plan = epoch_plan(count, batch_size, seed)
    positions = torch.cat(plan)
    assert {len(batch) for batch in plan} == {min(batch_size, count)}
    assert all(len(batch.unique()) == len(batch) for batch in plan)
    counts = torch.bincount(positions, minlength=count)
    assert counts.max() - counts.min() <= 1
    assert (counts == 0).sum() <= 0.1 * count
    assert len(plan) == steps_in_epoch(count, batch_size)
    assert all(torch.equal(a, b) for a, b in zip(plan, epoch_plan(count, batch_size, seed), strict=True))


def test_orders_differ_by_seed():
    assert not torch.equal(torch.cat(epoch_plan(100, 10, 0)), torch.cat(epoch_plan(100, 10, 1)))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, gpu])]


@given(st.integers(1, 100), st.integers(1, 40))
def test_sequential_covers_everything_in_order(count, batch_size):
    assert torch.equal(torch.cat(sequential_plan(count, batch_size)), torch.arange(count))


@pytest.mark.parametrize("kind", [ResidentImages, HostImages])
def test_images_of_memory_come_by_position(kind):
    images = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 8, 8).contiguous()
    batches = list(kind(images, torch.device("cpu")).stream([torch.tensor([3, 1]), torch.tensor([9])]))
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[3, 1], [9]]


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for i in range(12):
        file = tmp_path / f"class{i % 3}" / f"{i}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encode_png(random.integers(0, 256, (10, 12, 3), dtype=np.uint8)))
    return open_folder(tmp_path).train


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_come_in_the_order_of_the_plan_with_any_number_of_workers(photos, workers):
    """And from wherever an interrupted epoch goes on, whatever became of the one before."""
    images = load_images(photos, ImageShape(8, 3)).images
    streamed = StreamedImages(SampleDataset(photos, ImageShape(8, 3)), torch.device("cpu"), workers)
    plan = epoch_plan(12, 2, 0)
    abandoned = streamed.stream(plan)
    next(abandoned)
    for rest in (plan[1:], plan[4:], plan):
        assert torch.equal(torch.cat(list(streamed.stream(rest))), images[torch.cat(list(rest))])


def test_only_the_set_that_streams_has_workers(photos):
    first, second = (
        StreamedImages(SampleDataset(part, ImageShape(8, 3)), torch.device("cpu"), workers=1)
        for part in (photos, photos.at(np.arange(4)))
    )
    assert not is_resident(first)
    images = load_images(photos, ImageShape(8, 3)).images
    plan = sequential_plan(4, 2)
    begun = first.stream(plan)
    batches = [next(begun)]
    assert torch.equal(torch.cat(list(second.stream(plan))), images[:4])
    batches += begun
    assert torch.equal(torch.cat(batches), images[:4])
    del begun
    assert len(multiprocessing.active_children()) == 1
    assert torch.equal(torch.cat(list(first.stream(plan))), images[:4])


def test_images_are_the_same_ones_wherever_they_are_kept():
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    host, resident = (kind(images, torch.device("cpu")) for kind in (HostImages, ResidentImages))
    assert len(host) == 5
    assert host.fingerprint() == resident.fingerprint()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_images_of_the_host_reach_the_gpu_whole():
    images = torch.randint(0, 256, (20_000, 3, 8, 8), dtype=torch.uint8)
    gpu, plan = torch.device("cuda"), epoch_plan(20_000, 512, 0)
    busy = torch.randn(4096, 4096, device=gpu)
    kept = []
    for batch in HostImages(images, gpu).stream(plan):
        busy = busy @ busy / 4096  # the GPU is slower than the host: buffers must not be used again too early
        kept.append(batch)
    assert torch.equal(torch.cat(kept).cpu(), images[torch.cat(list(plan))])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_streamed_images_reach_the_gpu_whole_and_may_be_kept(photos):
    gpu = torch.device("cuda")
    resident = ResidentImages(load_images(photos, ImageShape(8, 3)).images, gpu)
    streamed = StreamedImages(SampleDataset(photos, ImageShape(8, 3)), gpu, workers=2)
    busy = torch.randn(4096, 4096, device=gpu)
    for seed in range(3):
        plan = epoch_plan(12, 2, seed)
        kept = []
        for images in streamed.stream(plan):
            busy = busy @ busy / 4096  # the GPU is slower than the host, as in a training
            kept.append(images)
        for a, b in zip(resident.stream(plan), kept, strict=True):
            assert torch.equal(a, b)


def test_streamed_images_are_the_resident_ones_epoch_after_epoch_and_errors_are_one_line(photos, tmp_path):
    cpu = torch.device("cpu")
    resident = ResidentImages(load_images(photos, ImageShape(8, 3)).images, cpu)
    streamed = StreamedImages(SampleDataset(photos, ImageShape(8, 3)), cpu, workers=2)
    assert len(streamed) == 12
    for seed in range(3):
        plan = epoch_plan(12, 5, seed)
        for a, b in zip(resident.stream(plan), streamed.stream(plan), strict=True):
            assert torch.equal(a, b)
    (tmp_path / "class1" / "4.png").write_bytes(b"gone bad")
    with pytest.raises(
        DataError, match=r"^[^\n]*class1/4\.png: not a JPEG[^\n]*readable when the run began$"
    ):
        list(streamed.stream(sequential_plan(12, 4)))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("device", DEVICES)
def test_a_set_kept_decoded_is_decoded_once(photos, tmp_path, device):
    streamed = StreamedImages(SampleDataset(photos, ImageShape(8, 3)), torch.device(device), workers=1)
    decoded = DecodedImages(streamed, scratch_file(tmp_path, (12, 3, 8, 8)))
    images = load_images(photos, ImageShape(8, 3)).images
    asked = []
    workers = streamed.workers
    read = workers.results
    workers.results = lambda plan: asked.extend(torch.cat(list(plan)).tolist() if plan else []) or read(plan)
    plans = [epoch_plan(12, 11, 0), sequential_plan(12, 4), epoch_plan(12, 11, 1)]
    for plan in plans:
        for positions, batch in zip(plan, decoded.stream(plan), strict=True):
            assert torch.equal(batch.cpu(), images[positions])
        assert bool(multiprocessing.active_children()) == (plan is not plans[-1])
    assert sorted(asked) == list(range(12))
    assert decoded.fingerprint() == streamed.fingerprint()
    assert not any(entry.is_file() for entry in tmp_path.iterdir())  # nothing with a name


def test_no_room_for_decoded_images_and_no_folder(tmp_path, monkeypatch):
    def full(descriptor, begin, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").touch()
    for name, reason in (("missing", "No such file"), ("file", "Not a directory")):
        with pytest.raises(
            DataError, match=rf"no file can be made there \({reason}.*\): name another folder"
        ):
            scratch_file(tmp_path / name, (1, 1, 8, 8))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"no room for 0\.0 GB .*No space left.* larger disk"):
        scratch_file(tmp_path, (1, 1, 8, 8))
    monkeypatch.delattr(os, "posix_fallocate")  # as on a system that has none
    assert scratch_file(tmp_path, (2, 1, 8, 8)).kept().tolist() == [False, False]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def few_bytes(move):
    """As a disk does that is nearly full, or a signal that comes in between."""
    return lambda descriptor, buffers, offset: move(descriptor, [buffers[0][:7]], offset)


def test_a_scratch_file_gives_back_what_was_written_however_little_a_call_moves(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwritev", few_bytes(os.pwritev))
    monkeypatch.setattr(os, "preadv", few_bytes(os.preadv))
    file = scratch_file(tmp_path, (20, 3, 4, 5))
    images = torch.randint(0, 256, (20, 3, 4, 5), dtype=torch.uint8)
    order = torch.randperm(20)
    file.write(order[:17], images[order[:17]])
    assert torch.equal(file.kept().nonzero().flatten(), order[:17].sort().values)
    found = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
    file.read(order[[16, 3]], found)
    assert torch.equal(found, images[order[[16, 3]]])


def test_a_disk_that_fails_is_said_in_one_line(tmp_path, monkeypatch):
    def fail(descriptor, buffers, offset):
        raise OSError(errno.EIO, "Input/output error")

    file, images = scratch_file(tmp_path, (2, 1, 8, 8)), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        with pytest.raises(DataError, match=r"^--cache: its disk failed \(Input/output error\)"):
            file.write(torch.arange(2), images)
    assert not file.kept().any()
    os.ftruncate(file.descriptor, 10)
    with pytest.raises(DataError, match=r"^--cache: its file was cut off"):
        file.read(torch.arange(2), images)


def test_some_images_of_a_larger_set():
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    whole = ResidentImages(images, torch.device("cpu"))
    chosen = ChosenImages(whole, torch.tensor([3, 7, 11]))
    assert len(chosen) == 3
    assert is_resident(chosen)
    batches = list(chosen.stream([torch.tensor([2, 0]), torch.tensor([1])]))
    assert torch.cat(batches).flatten().tolist() == [11, 3, 7]
    assert chosen.fingerprint() != ChosenImages(whole, torch.tensor([3, 7, 12])).fingerprint()
