"""The work of networks: by hand, by torch's own counter, and without a trace in the network."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pmal.config import EncoderConfig
from pmal.encoders import registry
from pmal.encoders.adapters import FeatureAdapter
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.cost import network_cost


def network(encoder, image_size=16, channels=3):
    return Classifier(ClassifierSpec(EncoderConfig(encoder), ("a", "b"), image_size, channels))


@pytest.fixture
def two(monkeypatch):
    """Two convolutions with batch norm between them."""

    def encoder(in_channels, image_size):
        first, second = nn.Conv2d(in_channels, 8, 3, padding=1, bias=False), nn.Conv2d(8, 5, 1, bias=False)
        return FeatureAdapter(nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(True), second), num_features=5)

    monkeypatch.setitem(registry._FACTORIES, "two", encoder)
    return network("two")


def test_a_network_counted_by_hand(two):
    cost = network_cost(two)
    first, second, head = 27 * 8 * 256, 8 * 5 * 256, 5 * 2
    assert cost.multiplications == first + second + head
    assert cost.forward_flops == 2 * cost.multiplications
    # Of the first convolution nobody wants the gradient of the images.
    assert cost.training_multiplications == 2 * first + 3 * (second + head)
    assert cost.training_flops == 2 * cost.training_multiplications
    maps = {name: channels * 256 for name, channels in (("in", 3), ("first", 8), ("second", 5))}
    convolutions = 2 * (maps["in"] + maps["first"]) + 3 * (maps["first"] + maps["second"])
    assert cost.training_numbers == convolutions + 8 * maps["first"]


@pytest.mark.parametrize("encoder", ["small", "oscri", "wide_resnet", "resnet18", "resnet50"])
def test_the_counter_of_torch_finds_the_same(encoder):
    model = network(encoder, 28, 1)
    cost = network_cost(model)
    with FlopCounterMode(display=False) as counter:
        logits = model.eval()(torch.zeros(1, 1, 28, 28))
        assert cost.forward_flops == counter.get_total_flops()
        logits.sum().backward()
    assert cost.training_flops == counter.get_total_flops()


def test_vectors_in_the_place_of_images():
    model = network("precomputed", 1, 20)
    assert network_cost(model).multiplications == 20 * 20 + 20 * 2


def test_the_network_stays_as_it_was(two):
    two.train()
    two.encoder.body[1].eval()
    before, modes = copy.deepcopy(two.state_dict()), [module.training for module in two.modules()]
    with torch.no_grad():  # the caller's mode changes nothing
        cost = network_cost(two)
    assert cost == network_cost(two)
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

    monkeypatch.setitem(registry._FACTORIES, "foreign", lambda in_channels, image_size: Foreign())
    assert network_cost(network("foreign", 8)).multiplications == 3 * 64 * 4 + 4 * 2


def test_oscri_at_32_px_costs_a_gigaflop():
    assert network_cost(network("oscri", 32)).training_flops / 1e9 == pytest.approx(0.984, abs=0.001)
