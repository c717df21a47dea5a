"""The work of networks: by hand, by torch's own counter, and without a trace in the network."""

import copy

import pytest
import torch
from torch import nn

from pmal.config import EncoderConfig
from pmal.encoders import registry
from pmal.encoders.adapters import FeatureAdapter
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.cost import multiplications


def network(encoder, image_size=16, channels=3):
    return Classifier(ClassifierSpec(EncoderConfig(encoder), ("a", "b"), image_size, channels))


@pytest.fixture
def two(monkeypatch):
    """Two convolutions with batch norm between them."""

    def encoder(in_channels, image_size):
        first, second = nn.Conv2d(in_channels, 8, 3, padding=1, bias=False), nn.Conv2d(8, 5, 1, bias=False)
        return FeatureAdapter(nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(True), second), num_features=5)

    monkeypatch.setitem(registry.ENCODERS._things, "two", (encoder, __name__))
    return network("two")


def test_a_network_counted_by_hand(two):
    first, second, head = 27 * 8 * 256, 8 * 5 * 256, 5 * 2
    assert multiplications(two) == first + second + head


def test_vectors_in_the_place_of_images():
    model = network("precomputed", 1, 20)
    assert multiplications(model) == 20 * 20 + 20 * 2


def test_the_network_stays_as_it_was(two):
    two.train()
    two.encoder.body[1].eval()
    before, modes = copy.deepcopy(two.state_dict()), [module.training for module in two.modules()]
    with torch.no_grad():  # the caller's mode changes nothing
        cost = multiplications(two)
    assert cost == multiplications(two)
    assert [module.training for module in two.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in two.state_dict().items())
    assert not any(module._forward_hooks for module in two.modules())
    assert all(parameter.grad is None for parameter in two.parameters())


def test_foreign_layers_may_take_and_return_anything_and_need_real_numbers(monkeypatch):
    class Layer(nn.Linear):
        def forward(self, *, vectors):
            return super().forward(vectors)

    class Pair(nn.Module):
        def forward(self, x):
            return x, x.sum().item()  # meta tensors have no such number

    class Foreign(nn.Module):
        num_features = 4

        def __init__(self):
            super().__init__()
            self.pair, self.layer = Pair(), Layer(3 * 64, 4)

        def forward(self, x):
            return self.layer(vectors=self.pair(x)[0].flatten(1))

    monkeypatch.setitem(
        registry.ENCODERS._things, "foreign", (lambda in_channels, image_size: Foreign(), __name__)
    )
    assert multiplications(network("foreign", 8)) == 3 * 64 * 4 + 4 * 2
