"""What a step costs, by hand and for a network that is known."""

import pytest
from torch import nn

from benchmarks.speed.training_cost import training_cost
from pmal.config import EncoderConfig
from pmal.encoders import registry
from pmal.encoders.adapters import FeatureAdapter
from pmal.ensemble.classifier import Classifier, ClassifierSpec


def network(encoder, image_size):
    return Classifier(ClassifierSpec(EncoderConfig(encoder), ("a", "b"), image_size, 3))


def test_two_convolutions_with_batch_norm_between_them(monkeypatch):
    def encoder(in_channels, image_size):
        first, second = nn.Conv2d(in_channels, 8, 3, padding=1, bias=False), nn.Conv2d(8, 5, 1, bias=False)
        return FeatureAdapter(nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(True), second), num_features=5)

    monkeypatch.setitem(registry.ENCODERS._things, "two", (encoder, __name__))
    cost = training_cost(network("two", 16))
    first, second, head = 27 * 8 * 256, 8 * 5 * 256, 5 * 2
    # Of the first convolution nobody wants the gradient of the images.
    assert cost.flops == 2 * (2 * first + 3 * (second + head))
    maps = {name: channels * 256 for name, channels in (("in", 3), ("first", 8), ("second", 5))}
    convolutions = 2 * (maps["in"] + maps["first"]) + 3 * (maps["first"] + maps["second"])
    assert cost.numbers == convolutions + 8 * maps["first"]


def test_oscri_at_32_px_costs_a_gigaflop():
    assert training_cost(network("oscri", 32)).flops / 1e9 == pytest.approx(0.984, abs=0.001)
