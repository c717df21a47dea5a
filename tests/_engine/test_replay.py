"""A replayed network gives what the network itself does."""

import threading

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble import replay
from pmal.ensemble.classifier import Classifier, ClassifierSpec, in_half_precision
from pmal.ensemble.replay import Replayed

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def network(device="cpu", seed=0):
    torch.manual_seed(seed)
    spec = ClassifierSpec(EncoderConfig("oscri"), ("a", "b", "c"), 16, 3)
    return Classifier(spec).use_channels_last().eval().to(device)


def pictures(count, seed=0, device="cpu"):
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=random).to(device)


@torch.no_grad()
def test_on_a_cpu_it_is_the_network():
    model = network()
    replayed = Replayed(model.embed, model)
    for seed in range(3):
        for found, expected in zip(replayed(pictures(4, seed)), model.embed(pictures(4, seed)), strict=True):
            assert torch.equal(found, expected)


def captures(replayed, monkeypatch):
    """What is asked for again is captured; no GPU is needed to see when."""
    monkeypatch.setattr(replayed, "_capture", lambda images: f"of {len(images)}")
    return lambda count: replayed._replay_of(pictures(count))


def test_weights_that_moved_are_not_taken_for_those_that_lay_there(monkeypatch):
    model = network()
    find = captures(Replayed(model.embed, model), monkeypatch)
    for _ in range(20):
        assert [find(1), find(1), find(1)] == [None, "of 1", "of 1"]
        model.double().float()  # often to where the old ones were


def test_what_cannot_be_captured_is_tried_once(monkeypatch):
    model, tried = network(), []
    replayed = Replayed(model.embed, model)

    def fail(images):
        tried.append(len(images))
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(replayed, "_capture", fail)
    assert not any(replayed._replay_of(pictures(count)) for count in (1, 1, 1, 2, 2, 2))
    assert tried == [1]


def test_shapes_that_came_once_make_room_for_others(monkeypatch):
    model = network()
    find = captures(Replayed(model.embed, model), monkeypatch)
    assert [find(1), find(1)] == [None, "of 1"]
    for count in range(2, 20):
        assert find(count) is None
    assert [find(40), find(40), find(1)] == [None, "of 40", "of 1"]


@pytest.mark.gpu
@gpu
@torch.no_grad()
@pytest.mark.parametrize("half", [False, True])
def test_on_a_gpu_every_batch_is_that_of_the_network(half):
    model = in_half_precision(network("cuda")) if half else network("cuda")
    replayed = Replayed(model.embed, model)
    kept = []
    for seed in range(4):
        for count in (1, 8):
            images = pictures(count, seed, "cuda")
            kept.append((replayed(images), model.embed(images)))
    assert sum(one is not None for one in replayed._captured.values()) == 2
    for found, expected in kept:  # at the end: what came out is not overwritten by what comes later
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2 if half else 1e-5, atol=1e-2 if half else 1e-5)


@pytest.mark.gpu
@gpu
@torch.no_grad()
def test_weights_that_moved_are_captured_anew_and_few_shapes_are_kept():
    model = network("cuda")
    replayed = Replayed(model.embed, model)
    images = pictures(4, device="cuda")
    for _ in range(3):
        replayed(images)
    model.load_state_dict(network(seed=1).state_dict())  # in place: the graph sees it
    torch.testing.assert_close(replayed(images)[0], model.embed(images)[0])
    model.cpu().cuda()
    torch.testing.assert_close(replayed(images)[0], model.embed(images)[0])
    for count in range(1, 10):
        for _ in range(2):
            replayed(pictures(count, device="cuda"))
    assert len(replayed._captured) == replay.MOST_SHAPES


@pytest.mark.gpu
@gpu
@torch.no_grad()
def test_threads_do_not_mix_their_images():
    model = network("cuda")
    replayed, wrong = Replayed(model.embed, model), []
    expected = {seed: model.embed(pictures(4, seed, "cuda"))[0] for seed in range(4)}

    def ask(seed):
        with torch.no_grad():
            for _ in range(100):
                z_BD, _ = replayed(pictures(4, seed, "cuda"))
                if not torch.allclose(z_BD, expected[seed], rtol=1e-4, atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU or none")
@torch.no_grad()
def test_a_gpu_that_is_not_the_current_one():
    model = network("cuda:1")
    replayed = Replayed(model.embed, model)
    for seed in range(4):
        images = pictures(4, seed, "cuda:1")
        torch.testing.assert_close(replayed(images)[0], model.embed(images)[0], rtol=1e-5, atol=1e-5)
    assert replayed._captured[images.shape]
    assert torch.cuda.current_device() == 0
