import copy
import threading

import pytest
import torch
from torch import nn

from pmal.encoders import create_encoder, observing
from pmal.encoders.observing import Observer, channel_statistics, observed_layers


def test_statistics_are_means_and_deviations_of_channels():
    x = torch.randn(3, 5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = channel_statistics(x)
    for b in range(3):
        for c in range(5):
            values = x[b, c].flatten().tolist()
            mean = sum(values) / 24
            deviation = (sum((v - mean) ** 2 for v in values) / 24) ** 0.5
            assert found[b, c].item() == pytest.approx(mean, abs=1e-6)
            assert found[b, 5 + c].item() == pytest.approx(deviation, abs=1e-6)


def test_tokens_and_vectors_have_statistics_too():
    tokens = torch.randn(2, 7, 3)
    torch.testing.assert_close(channel_statistics(tokens)[:, :3], tokens.mean(dim=1))
    assert channel_statistics(torch.ones(2, 4)).tolist() == [[1.0] * 4 + [0.0] * 4] * 2


def test_of_many_channels_and_layers_some_are_observed(monkeypatch):
    monkeypatch.setattr(observing, "MOST_CHANNELS", 3)
    x = torch.arange(9.0)[None, :, None, None].expand(2, 9, 2, 2)
    assert channel_statistics(x).tolist() == [[0.0, 3.0, 6.0, 0.0, 0.0, 0.0]] * 2
    deep = nn.Sequential(*(nn.BatchNorm2d(2) for _ in range(40)))
    assert len(observed_layers(deep)) == 16
    assert next(iter(observed_layers(deep))) == "0"
    assert list(observed_layers(deep))[-1] == "39"


@pytest.mark.parametrize("name", ["oscri", "small", "wide_resnet", "resnet18"])
def test_norms_of_our_encoders_are_observed(name):
    encoder = create_encoder(name).eval()
    norms = [layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm2d)]
    observer = Observer(encoder)
    with torch.no_grad(), observer.looking() as found:
        encoder(torch.randn(2, 3, 16, 16))
    assert len(observer.names) == min(len(norms), 16)
    assert set(found) == set(observer.names)
    assert all(statistics.shape[0] == 2 for statistics in found.values())


def test_without_norms_convolutions_are_observed():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    assert list(observed_layers(network)) == ["0", "3"]


def test_nothing_is_kept_when_nobody_looks_and_the_output_is_the_same():
    encoder = create_encoder("small", in_channels=1).eval()
    images = torch.randn(2, 1, 12, 12)
    with torch.no_grad():
        before = encoder(images)
        observer = Observer(encoder)
        with observer.looking() as found:
            assert torch.equal(encoder(images), before)
        seen = dict(found)
        encoder(torch.randn(5, 1, 12, 12))
    assert {name: len(value) for name, value in found.items()} == dict.fromkeys(seen, 2)


def test_threads_see_their_own_images():
    encoder = create_encoder("small", in_channels=1).eval()
    observer, found, meet = Observer(encoder), {}, threading.Barrier(4)

    def work(count):
        with torch.no_grad(), observer.looking() as mine:
            meet.wait()
            for _ in range(5):
                encoder(torch.randn(count, 1, 12, 12))
        found[count] = {len(value) for value in mine.values()}

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {count: {count} for count in (1, 2, 3, 4)}


def test_a_copy_has_an_observer_of_its_own():
    holder = nn.Module()
    holder.encoder = create_encoder("small", in_channels=1).eval()
    holder.observer = Observer(holder.encoder)
    other = copy.deepcopy(holder)
    with torch.no_grad(), other.observer.looking() as seen, holder.observer.looking() as unseen:
        other.encoder(torch.randn(3, 1, 12, 12))
    assert set(seen) == set(other.observer.names)
    assert not unseen
